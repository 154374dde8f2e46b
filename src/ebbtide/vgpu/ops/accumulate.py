"""Sums and scatters that the autograd engine does in place on a GPU.

A tensor that arrives twice at a node is summed by the engine: in place if nobody else
holds the first of the two, out of place if either is a subclass of Tensor
(`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp, 2.0 to 2.13). A fake
tensor is one. Backward formulae ask the same question before they scatter into zeros
(`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp). So here the
result takes over the memory of the first argument, where the engine would have done so.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

_aten = torch.ops.aten

OVERLOADS = (
    _aten.add.Tensor,
    _aten.scatter.src,
    _aten.scatter.value,
    _aten.scatter_add.default,
    _aten.index_put.default,
    _aten.index_add.default,
)

# How often a tensor that only the engine holds is counted: by the engine, the argument
# list, and twice by its Python object on the way here; in `index_put`'s formula by a local
# as well. Its storage: by the tensor, and by the Python object that asking for it makes.
# Both are what torch 2.13 shows for a tensor of a single owner; a test holds them.
_TENSOR_USES = {_aten.index_put.default: 5}
_STORAGE_USES = 2


def over_first(handler: Any | None) -> Any:
    """`handler`, or the plain run, with the result in the first argument's memory if free."""

    def handle(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = args[0]
        if (
            mode.places.in_backward
            and not torch.is_grad_enabled()
            and isinstance(first, torch.Tensor)
            and _by_engine()
            and _last_reference(first, _TENSOR_USES.get(func, 4))
            and _same_kind(func, args)
            and is_non_overlapping_and_dense_or_false(first)
        ):
            with mode.storages.handed_over(first):
                return _run(mode, func, args, kwargs)
        return _run(mode, func, args, kwargs)

    def _run(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if handler is None:
            return mode.run(func, args, kwargs)
        return handler(mode, func, args, kwargs)

    return handle


def _by_engine() -> bool:
    """Whether the engine called the operation itself, not a hook or a function in Python."""
    return sys._getframe(3).f_code.co_name == "_engine_run_backward"


def _last_reference(tensor: torch.Tensor, uses: int) -> bool:
    storage = tensor.untyped_storage()
    held: int = torch._C._storage_Use_Count(storage._cdata)
    return tensor._use_count() <= uses and held <= _STORAGE_USES  # type: ignore[attr-defined]


def _same_kind(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the result is like the first argument: not so for a sum that widens it."""
    if func is not _aten.add.Tensor:
        return True
    first, second = args[:2]
    return (
        isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and first.dtype == second.dtype
    )
