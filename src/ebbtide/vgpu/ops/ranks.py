"""Indices that come from an order of unknown values: of experts, of boxes, of noise.

Which they are cannot be known, but each is there once in its row, and rows differ. So
they are dealt out in turn: experts get the same share of the tokens, which is what their
training aims for, and permutations are permutations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten
HANDLERS: dict[Any, Any] = {}


def in_turn(shape: tuple[int, ...], dim: int, extent: int) -> torch.Tensor:
    """Indices below `extent` along `dim`: one row goes on where the last one ended.

    A choice begins in the middle: of a vocabulary, the first and last tokens are those
    that end a text.

    Args:
        shape: of the indices, at most `extent` of them in a row.
        dim: along which a row lies.
        extent: how many there are to choose from.
    """
    if not shape:
        return torch.zeros((), dtype=torch.int64)
    length = shape[dim]
    rows = [n for i, n in enumerate(shape) if i != dim % len(shape)]
    start = extent // 2 if length < extent else 0
    dealt = (start + torch.arange(torch.Size(shape).numel())) % max(extent, 1)
    return dealt.view(*rows, length).movedim(-1, dim)


def _guess(mode: Any, indices: torch.Tensor, dim: int, extent: int) -> None:
    shadows = mode.shadows
    if shadows.known(indices) is None and shadows.small(indices.shape, indices.dtype):
        with _disable_current_modes():
            dealt = in_turn(tuple(indices.shape), dim, extent)
            shadows.remember(indices, dealt.to(indices.dtype))


def _ordered(position: int) -> Any:
    """For operations that return values and indices; `position` is that of `dim`."""

    def run(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        values, indices = mode.run(func, args, kwargs)
        dim = args[position] if len(args) > position else kwargs.get("dim", -1)
        if indices.dim():
            _guess(mode, indices, dim, args[0].shape[dim])
        return values, indices

    return run


def _permutation(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    made: torch.Tensor = mode.run(func, args, kwargs)
    _guess(mode, made, 0, args[0])
    return made


HANDLERS.update(
    {
        _aten.topk.default: _ordered(2),
        _aten.sort.default: _ordered(1),
        _aten.sort.stable: _ordered(2),
        _aten.randperm.default: _permutation,
        _aten.randperm.generator: _permutation,
    }
)
