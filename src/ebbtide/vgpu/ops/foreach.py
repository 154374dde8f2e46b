"""`_foreach_*` and `_fused_*`: one launch over lists of tensors.

PyTorch's fallback would run an operation for each tensor, which is what happens
without CUDA; on a GPU there are a few launches over all of them.
"""

from __future__ import annotations

from typing import Any

import torch

_REDUCING = frozenset({"_foreach_norm", "_foreach_max", "_foreach_powsum"})


def _in_place(mode: Any, func: Any, args: Any, kwargs: Any) -> None:
    mode.record_only(func, args, kwargs)
    if func._schema.name.startswith("aten::_foreach_"):
        mode.shadows.follow_lists(func, args, kwargs)


def _out_of_place(mode: Any, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    name = func._schema.name.removeprefix("aten::")
    lists = [value for value in args if isinstance(value, tuple | list)]
    lists = [value for value in lists if value and isinstance(value[0], torch.Tensor)]
    mode.record_only(func, args, kwargs)
    made: list[torch.Tensor] = []
    for position, tensor in enumerate(lists[0]):
        dtype = tensor.dtype
        for other in lists[1:]:
            dtype = torch.promote_types(dtype, other[position].dtype)
        if name in _REDUCING:
            dtype = kwargs.get("dtype") or dtype
            made.append(mode.new_tensor((), tensor, dtype))
        else:
            made.append(mode.new_tensor(tensor.shape, tensor, dtype, tensor.stride()))
    return made


def handler_for(func: Any) -> Any | None:
    """The handler of a `_foreach_*` or `_fused_*` operation over lists, else None."""
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    if not name.startswith(("_foreach_", "_fused_")) or func._overloadname.endswith("out"):
        return None
    if not any(str(argument.type) == "List[Tensor]" for argument in schema.arguments):
        return None
    if schema.is_mutable:
        return None if schema.returns else _in_place
    return _out_of_place if name.startswith("_foreach_") else None
