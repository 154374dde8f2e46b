"""Operations whose output size depends on values.

Where the values are known (small masks, ids) the size is exact. Otherwise the
largest possible size is taken, which bounds memory from above, and the guess is
listed.
"""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.vgpu.shadow import count_true
from ebbtide.vgpu.tape import SYNC

_aten = torch.ops.aten
HANDLERS: dict[Any, Any] = {}
_MASKS = (torch.bool, torch.uint8)
_IN_PLACE = frozenset({_aten.index_put_.default, _aten._index_put_impl_.default})


def _empty(mode: Any, like: torch.Tensor, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    made: torch.Tensor = mode.new_tensor(tuple(shape), like, dtype)
    return made


def _with_values(mode: Any, func: Any, args: Any, kwargs: Any) -> Any | None:
    """The outputs' real values if all inputs are known, else None."""
    known = []
    for value in args:
        if isinstance(value, torch.Tensor):
            value = mode.shadows.known(value)
            if value is None:
                return None
        known.append(value)
    with torch.utils._python_dispatch._disable_current_modes():
        return func(*known, **kwargs)


def _place(mode: Any, like: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A fake tensor on `like`'s device that holds `values`."""
    made = _empty(mode, like, list(values.shape), values.dtype)
    if mode.shadows.small(values.shape, values.dtype):
        mode.shadows.remember(made, values)
    return made


def _nonzero(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    values = mode.shadows.known(tensor)
    if values is not None and not mode.shadows.small(tensor.shape, tensor.dtype):
        with torch.utils._python_dispatch._disable_current_modes():
            count = count_true(values)
        return _empty(mode, tensor, [count, tensor.dim()], torch.int64)
    known = _with_values(mode, func, args, kwargs)
    if known is not None:
        return _place(mode, tensor, known)
    mode.note("nonzero", "`nonzero` of unknown values: every element is taken as nonzero")
    made = _empty(mode, tensor, [tensor.numel(), tensor.dim()], torch.int64)
    # The places are known then, and must be: compared as zeros, they would all be dropped.
    if mode.shadows.small([tensor.numel()], torch.int64):
        with torch.utils._python_dispatch._disable_current_modes():
            everywhere = torch.ones(tuple(tensor.shape), dtype=torch.bool).nonzero()
        mode.shadows.remember(made, everywhere)
    return made


def _masked_select(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, mask = args[:2]
    known = mode.shadows.known(mask)
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    if known is not None:
        with torch.utils._python_dispatch._disable_current_modes():
            count = count_true(known.expand(shape))
    else:
        mode.note("mask", "selection by an unknown mask: every element is taken as selected")
        count = 1
        for n in shape:
            count *= n
    return _empty(mode, tensor, [count], tensor.dtype)


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    known = _with_values(mode, func, args, kwargs)
    if known is not None:
        return tuple(_place(mode, tensor, values) for values in known)
    mode.note("unique", "`unique` of values on the GPU: all are taken as different")
    given = _by_name(func, args, kwargs)
    dim = given.get("dim")
    count = tensor.numel() if dim is None else tensor.shape[dim]
    values = list(tensor.shape) if dim is not None else [count]
    # Along a dimension all three come back, whether they were asked for or not.
    inverse, counts = [count], [count]
    if dim is None:
        inverse = list(tensor.shape) if given["return_inverse"] else [0]
        counts = [count] if given["return_counts"] else [0]
    return (
        _empty(mode, tensor, values, tensor.dtype),
        _empty(mode, tensor, inverse, torch.int64),
        _empty(mode, tensor, counts, torch.int64),
    )


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Every argument of an operation by its name, defaults too."""
    names = func._schema.arguments
    given: dict[str, Any] = {a.name: a.default_value for a in names if a.has_default_value()}
    given.update((a.name, value) for a, value in zip(names, args, strict=False))
    return {**given, **kwargs}


def _fill_mask(tensor: torch.Tensor, indices: Any, rest: Any) -> torch.Tensor | None:
    """The mask of ``x[mask] = number``, which is a fill and finds no indices.

    As `canDispatchToMaskedFill` (TensorAdvancedIndexing.cpp): one mask and nothing else,
    a single value, which Python's indexing leaves on the host, and no accumulation.
    """
    value, accumulate = rest[0], len(rest) > 1 and rest[1]
    masks = [index for index in indices if index is not None]
    if accumulate or len(masks) != 1 or value.numel() != 1 or value.device.type != "cpu":
        return None
    mask: torch.Tensor = masks[0]
    before = next(i for i, index in enumerate(indices) if index is not None)
    for _ in range(tensor.dim() - before - mask.dim()):
        mask = mask.unsqueeze(-1)
    return mask


def _index(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Boolean masks become index tensors, as the CUDA kernel makes them by `nonzero`."""
    tensor, indices, *rest = args
    if not any(index is not None and index.dtype in _MASKS for index in indices):
        return mode.run(func, args, kwargs)
    mask = _fill_mask(tensor, indices, rest) if func in _IN_PLACE else None
    if mask is not None:
        return mode.call(_aten.masked_fill_.Scalar, tensor, mask, rest[0].item())
    expanded: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            expanded.append(index)
            continue
        found = mode.call(_aten.nonzero.default, index)
        expanded += [mode.call(_aten.select.int, found, 1, d) for d in range(index.dim())]
    return mode.run(func, (tensor, expanded, *rest), kwargs)


def _bincount(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    known = _with_values(mode, func, args, kwargs)
    if known is not None:
        return _place(mode, args[0], known)
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    mode.note("bincount", "`bincount` of unknown values: `minlength` bins")
    weights = args[1] if len(args) > 1 else None
    return _empty(
        mode, args[0], [max(least, 1)], torch.float64 if weights is not None else torch.int64
    )


def _repeat_interleave(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    repeats = args[0]
    size = kwargs.get("output_size", args[1] if len(args) > 1 else None)
    if size is None:
        known = mode.shadows.known(repeats)
        if known is not None:
            size = int(known.sum())
        else:
            mode.note("repeat", "`repeat_interleave` by unknown counts: one of each")
            size = repeats.numel()
    return _empty(mode, repeats, [size], torch.int64)


def _recorded(handler: Any) -> Any:
    """`handler`, with the launch written down; the host waits to learn the size."""

    def run(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        mode.record_only(func, args, kwargs)
        mode.tape.event(SYNC)
        return handler(mode, func, args, kwargs)

    return run


HANDLERS[_aten.nonzero.default] = _recorded(_nonzero)
HANDLERS[_aten.masked_select.default] = _recorded(_masked_select)
HANDLERS[_aten.repeat_interleave.Tensor] = _recorded(_repeat_interleave)
HANDLERS[_aten.bincount.default] = _recorded(_bincount)
for _overload in (
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.unique_dim_consecutive.default,
):
    HANDLERS[_overload] = _recorded(_unique)
for _overload in (
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
    _aten._unsafe_index_put.default,
):
    HANDLERS[_overload] = _index
