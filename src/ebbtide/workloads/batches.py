"""Which batch size a script runs at, and how to make it run at another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

PLACEHOLDER = "{batch}"
# Spellings of the option in the training scripts of Transformers, timm, torchvision's
# references, nanoGPT, Lightning's and Accelerate's examples.
_OPTION = re.compile(
    r"-b|-bs|--?(?:(?:per[-_]device[-_]|train[-_]|per[-_]device[-_]train[-_])?batch(?:[-_]size)?|bs)"
)


def find_batch(args: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """The arguments with the batch size replaced by `PLACEHOLDER`, and that size.

    Args as they are and None where no option of a usual name with a number is found.
    """
    found = list(args)
    for position, arg in enumerate(found):
        name, equals, value = arg.partition("=")
        if not _OPTION.fullmatch(name):
            continue
        if equals and value.isdigit():
            found[position] = f"{name}={PLACEHOLDER}"
            return tuple(found), int(value)
        if not equals and position + 1 < len(found) and found[position + 1].isdigit():
            value = found[position + 1]
            found[position + 1] = PLACEHOLDER
            return tuple(found), int(value)
    return tuple(args), None


def another_batch(batch: int) -> int:
    """The second batch size to trace for a curve."""
    return batch * 2


class LoaderBatches:
    """Sees the batch sizes of data loaders, and changes them where asked.

    Args:
        change: (from, to): loaders that are made with the first get the second.

    Attributes:
        seen: batch size of each loader, in order of creation.
    """

    def __init__(self, change: tuple[int, int] | None = None) -> None:
        self.change = change
        self.seen: list[int] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this holds, loaders are seen and changed."""
        from torch.utils.data import DataLoader

        original = DataLoader.__init__

        def init(loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **kwargs: Any) -> None:
            if isinstance(batch_size, int):
                self.seen.append(batch_size)
                if self.change is not None and batch_size == self.change[0]:
                    batch_size = self.change[1]
            original(loader, dataset, batch_size, *args, **kwargs)

        DataLoader.__init__ = init  # type: ignore[method-assign]
        try:
            yield
        finally:
            DataLoader.__init__ = original  # type: ignore[method-assign]

    @property
    def batch(self) -> int | None:
        """The batch size of training, as far as loaders tell: that of the first one."""
        return self.seen[0] if self.seen else None
