"""Copies between the host and the virtual GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.vgpu.tape import SYNC

_aten = torch.ops.aten
HANDLERS: dict[Any, Any] = {}
# Copied to the host, a tensor up to this size becomes real (zeros, or its known
# values), so that NumPy, metrics and logging go on; a larger one stays fake.
_MOST_REAL_BYTES = 16 << 20


def _on_gpu(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


def _to_copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    row = len(mode.tape.op_name)
    result = mode.run(func, args, kwargs)
    source = args[0]
    if _on_gpu(source) == _on_gpu(result):
        return result
    if _on_gpu(result):
        mode.over_link(row, _upload(source), _bytes(source))
        return result
    mode.over_link(row, "d2h", _bytes(source))
    mode.tape.event(SYNC)
    if not isinstance(result, FakeTensor) or mode.keep_host_copies_fake:
        return result
    if result.untyped_storage().nbytes() <= _MOST_REAL_BYTES:
        return mode.real_copy(result, source)
    return result


def _bytes(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return _bytes(tensor._indices()) + _bytes(tensor._values())
    return tensor.numel() * tensor.dtype.itemsize


def _upload(source: torch.Tensor) -> str:
    dense = source.layout is torch.strided and not isinstance(source, FakeTensor)
    pinned = dense and source.is_pinned()
    return "h2d-pinned" if pinned else "h2d"


def _copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`target.copy_(source)`: into a real target what is known of the values is written."""
    target, source = args[:2]
    row = len(mode.tape.op_name)
    if isinstance(target, FakeTensor):
        result = mode.run(func, args, kwargs)
        if _on_gpu(target) and not _on_gpu(source):
            mode.over_link(row, _upload(source), _bytes(source))
        elif _on_gpu(source) and not _on_gpu(target):
            mode.over_link(row, "d2h", _bytes(source))
        return result
    if _on_gpu(source):
        mode.record_only(func, args, kwargs)
        pinned = target.is_pinned()
        mode.over_link(row, "d2h-pinned" if pinned else "d2h", _bytes(source))
        waits = not (pinned and _flag(args, kwargs))
        if waits:
            mode.tape.event(SYNC)
    known = mode.shadows.known(source)
    if known is not None:
        with torch.utils._python_dispatch._disable_current_modes():
            target.copy_(known)
    return target


def _flag(args: Any, kwargs: Any) -> bool:
    """`non_blocking` of `copy_`."""
    return bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))


def _is_pinned(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    return False


def _pin_memory(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


HANDLERS[_aten._to_copy.default] = _to_copy
HANDLERS[_aten.copy_.default] = _copy
HANDLERS[_aten.is_pinned.default] = _is_pinned
HANDLERS[_aten._pin_memory.default] = _pin_memory
