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


def _to_copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    result = mode.run(func, args, kwargs)
    source = args[0]
    if (
        isinstance(result, FakeTensor)
        and result.fake_device.type == "cpu"
        and isinstance(source, FakeTensor)
        and source.fake_device.type == "cuda"
    ):
        mode.tape.event(SYNC)
        if not mode.keep_host_copies_fake and result.untyped_storage().nbytes() <= _MOST_REAL_BYTES:
            return mode.real_copy(result, source)
    return result


def _copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`real.copy_(fake)`: the values are not known; what is known is written."""
    target, source = args[:2]
    if isinstance(target, FakeTensor):
        return mode.run(func, args, kwargs)
    mode.tape.event(SYNC)
    known = mode.shadows.known(source)
    if known is not None:
        with torch.utils._python_dispatch._disable_current_modes():
            target.copy_(known)
    return target


def _is_pinned(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    return False


def _pin_memory(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


HANDLERS[_aten._to_copy.default] = _to_copy
HANDLERS[_aten.copy_.default] = _copy
HANDLERS[_aten.is_pinned.default] = _is_pinned
HANDLERS[_aten._pin_memory.default] = _pin_memory
