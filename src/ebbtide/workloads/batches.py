"""Which batch size a script runs at, and how to make it run at another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

PLACEHOLDER = "{batch}"
# Spellings of the option in the training scripts of Transformers, timm, torchvision's
# references, nanoGPT, Lightning's and Accelerate's examples; without dashes as Hydra takes it.
_OPTION = re.compile(
    r"-b|-bs|(?:--?)?(?:(?:train|training|data|dataset|dataloader|trainer|hparams)[._])?"
    r"(?:(?:per[-_]device|per[-_]gpu|train|micro|mini|local)[-_])*"
    r"(?:batch(?:[-_]?size)?|bs)(?:[-_]per[-_](?:gpu|device))?"
)


def find_batch(args: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """The arguments with the batch size replaced by `PLACEHOLDER`, and that size.

    Args as they are and None where no option of a usual name with a number is found.
    """
    found = list(args)
    for position, arg in enumerate(found):
        name, equals, value = arg.partition("=")
        if not _OPTION.fullmatch(name) or not (equals or name.startswith("-")):
            continue
        if equals and value.isdigit():
            found[position] = f"{name}={PLACEHOLDER}"
            return tuple(found), int(value)
        if not equals and position + 1 < len(found) and found[position + 1].isdigit():
            value = found[position + 1]
            found[position + 1] = PLACEHOLDER
            return tuple(found), int(value)
    return tuple(args), None


def other_sizes(size: int, most: int | None = None) -> tuple[int, ...]:
    """Two further sizes to trace for a curve through `size`, the better one first.

    Larger ones, as people ask about those; smaller ones where the data set is too short.
    None is 1: dimensions of 1 take other kernels and other views.

    Args:
        size: the batch size that is known.
        most: the largest that the data set has enough samples for, None where it has no end.
    """
    wanted = [size * 2, size * 4, *(size // part for part in (2, 4) if size % part == 0)]
    found = [each for each in wanted if each > 1 and (most is None or each <= most)]
    return tuple(found[:2]) or (size * 2,)


class LoaderBatches:
    """Sees the batch sizes of data loaders, and changes them where asked.

    Args:
        to: batch size that loaders get in place of `of`.
        of: which loaders: those made with this size; None for the size of the first loader.

    Attributes:
        of: as above, filled in when the first loader is made.
        changed: loaders that were given another size.
        training: batch size of the data that the last optimizer step was made from.
        accumulated: batches that went into a step, at the fewest; 0 before the second.
        batches: how many batches the loader of the last step has, None where it does not know.
    """

    def __init__(self, to: int | None = None, of: int | None = None) -> None:
        self.to = to
        self.of = of
        self.changed = 0
        self.training: int | None = None
        self.accumulated = 0
        self.batches: int | None = None
        self._iterator: Any = None
        self._first: int | None = None
        self._serving: int | None = None
        self._served = 0

    @property
    def batch(self) -> int | None:
        """The batch size of training; without a step, that of the first loader that served."""
        return self.training if self.training is not None else self._first

    def stepped(self, steps: int) -> None:
        """Call after each optimizer step."""
        if self._serving is not None:
            self.training = self._serving
        if self._iterator is not None:
            self.batches = _length(self._iterator._index_sampler)
        if steps > 1 and self._served:
            self.accumulated = min(self.accumulated or self._served, self._served)
        self._served = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this holds, loaders are seen and changed."""
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        create, serve = DataLoader.__init__, _BaseDataLoaderIter.__next__

        def created(
            loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **kwargs: Any
        ) -> None:
            # A batch sampler forbids every other size than the default.
            if kwargs.get("batch_sampler") is None and isinstance(batch_size, int):
                batch_size = self._size(batch_size)
            create(loader, dataset, batch_size, *args, **kwargs)

        def served(iterator: Any) -> Any:
            data = serve(iterator)
            size = getattr(iterator._index_sampler, "batch_size", None)
            self._serving = size if isinstance(size, int) else None
            self._served += 1
            self._iterator = iterator
            if self._first is None:
                self._first = self._serving
            return data

        DataLoader.__init__ = created  # type: ignore[method-assign, assignment]
        _BaseDataLoaderIter.__next__ = served  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            DataLoader.__init__ = create  # type: ignore[method-assign]
            _BaseDataLoaderIter.__next__ = serve  # type: ignore[method-assign]

    def _size(self, asked: int) -> int:
        if self.of is None:
            self.of = asked
        if self.to is None or asked != self.of:
            return asked
        self.changed += 1
        return self.to


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):  # an endless one
        return None
