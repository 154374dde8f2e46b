"""Split a batch along its batch dimension into parts. The parts are views, not copies."""

from __future__ import annotations

import copy
from collections import Counter, UserDict
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from ebbtide.errors import EbbtideError


class CannotSplitError(EbbtideError):
    """A batch or a loss cannot be split into micro-batches; nothing has been changed."""


def batch_size(batch: Any, dim: int = 0) -> int:
    """Samples in `batch`: the size along `dim` that most of its tensors have.

    Args:
        batch: a tensor, or any nesting of tuples, lists and dicts with tensors in it.
        dim: the batch dimension.

    Raises:
        CannotSplitError: no tensor has that dimension, or a leaf cannot be split along it.
    """
    leaves = [leaf for leaf in _leaves(batch) if isinstance(leaf, Tensor)]
    sizes = [leaf.size(dim) for leaf in leaves if leaf.dim() > dim]
    if not sizes:
        raise CannotSplitError(
            f"The batch, a {type(batch).__name__}, holds {len(leaves)} tensors and none with a "
            f"dimension {dim} to split along. Leave micro-batching out of the plan."
        )
    return Counter(sizes).most_common(1)[0][0]  # the first one where several are as common


def part_sizes(size: int, parts: int) -> list[int]:
    """Samples in each of `parts` parts, which differ by one at most, larger ones first.

    Raises:
        CannotSplitError: there are fewer samples than parts.
    """
    if parts < 1 or parts > size:
        raise CannotSplitError(
            f"A batch of {size} cannot be split into {parts} parts of at least one sample. "
            f"Ask for 1 to {size} parts."
        )
    return [size // parts + (i < size % parts) for i in range(parts)]


def split_batch(batch: Any, parts: int, dim: int = 0, size: int | None = None) -> list[Any]:
    """`batch` in `parts` parts of the same structure.

    Tensors of `size` along `dim` are split; other tensors and leaves go to every part.

    Args:
        batch: a tensor, or any nesting of tuples, lists and dicts with tensors in it.
        parts: how many.
        dim: the batch dimension.
        size: samples in the batch; `batch_size` by default.

    Raises:
        CannotSplitError: there are fewer samples than parts, or nothing to split.
    """
    size = batch_size(batch, dim) if size is None else size
    starts = [0]
    for count in part_sizes(size, parts):
        starts.append(starts[-1] + count)
    return [take(batch, a, b, dim, size) for a, b in pairwise(starts)]


def take(batch: Any, start: int, stop: int, dim: int = 0, size: int | None = None) -> Any:
    """Samples `start` to `stop` of `batch`."""
    size = batch_size(batch, dim) if size is None else size

    def part(leaf: Any) -> Any:
        if isinstance(leaf, UserDict):
            made = copy.copy(leaf)
            made.data = {name: take(value, start, stop, dim, size) for name, value in leaf.items()}
            return made
        if isinstance(leaf, Tensor) and leaf.dim() > dim and leaf.size(dim) == size:
            return leaf.narrow(dim, start, stop - start)
        return leaf

    return pytree.tree_map(part, batch)


def _is_packed(node: Any) -> bool:
    return isinstance(node, PackedSequence)


def _leaves(batch: Any) -> list[Any]:
    found = []
    for leaf in pytree.tree_leaves(batch, is_leaf=_is_packed):
        if _is_packed(leaf):
            raise CannotSplitError(
                "The batch holds a PackedSequence, whose samples lie interleaved in one tensor. "
                "Pack inside the objective, or leave micro-batching out of the plan."
            )
        if isinstance(leaf, Tensor) and leaf.is_nested:
            raise CannotSplitError(
                "The batch holds a nested tensor, which cannot be narrowed. Give a padded one, "
                "or leave micro-batching out of the plan."
            )
        if isinstance(leaf, Tensor) and leaf.is_sparse:
            raise CannotSplitError(
                f"The batch holds a sparse tensor of shape {tuple(leaf.shape)}, which cannot be "
                "narrowed. Give a dense one, or leave micro-batching out of the plan."
            )
        found += _leaves(dict(leaf)) if isinstance(leaf, UserDict) else [leaf]
    return found
