"""Operations that PyTorch knows no shapes for.

FakeTensor would run such an operation on the GPU itself. Here its CPU kernel runs on
zeros, which gives shapes, strides and dtypes; the guess is listed, because a CUDA kernel
may need memory that nobody has written down. Without a CPU kernel there is an error that
names the operation: nothing is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from ebbtide.errors import VirtualGpuError

if TYPE_CHECKING:
    from ebbtide.vgpu.mode import VirtualMode

# What FakeTensor raises where it has no rule.
NO_RULE = (
    UnsupportedOperatorException,
    DynamicOutputShapeException,
    DataDependentOutputException,
    NotImplementedError,
)
# Together the arguments may be this large: they become real for a moment.
_MOST_BYTES = 1 << 30
_CPU = torch.device("cpu")
_aten = torch.ops.aten
_ALIASES = (_aten.detach.default, _aten.alias.default)
# FakeTensor gives these a result without elements.
SPARSE_RULES = (_aten.clone.default, _aten.add.Tensor)


def _error(name: str, reason: str) -> VirtualGpuError:
    return VirtualGpuError(
        f"{name} cannot run on the virtual GPU: PyTorch has no shape rule for it and {reason}. "
        "Give it one with torch.library.register_fake, or leave it out of what is predicted."
    )


def takes_sparse(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether `run_sparse` knows better than FakeTensor."""
    return func in SPARSE_RULES and all(
        isinstance(arg, torch.Tensor) and arg.layout is torch.sparse_coo for arg in args
    )


def run_sparse(mode: VirtualMode, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A copy of a sparse tensor, or a sum, which is its terms' elements one after the other.

    As in aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu (add_out_sparse_cuda).
    """
    with mode:
        indices = torch.cat([arg._indices() for arg in args], 1)
        values = torch.cat([arg._values() for arg in args])
    return _sparse(mode, args[0], [indices, values])


def run_on_host(mode: VirtualMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The outputs of `func` as fake tensors on the device of its first tensor.

    Raises:
        VirtualGpuError: there is no CPU kernel either, or the arguments are too large.
    """
    name = func._schema.name
    if func in _ALIASES and args[0].layout is torch.sparse_coo:
        return _sparse(mode, args[0], [args[0]._indices(), args[0]._values()])
    fakes = [value for value in _leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    device = next((f.fake_device for f in fakes if isinstance(f, FakeTensor)), _CPU)
    device = kwargs.get("device") or device
    size = sum(fake.numel() * fake.dtype.itemsize for fake in fakes)
    if size > _MOST_BYTES:
        raise _error(name, f"its arguments ({size} bytes) are too large to try it on the CPU")
    with _disable_current_modes(), torch.no_grad():
        real_args, real_kwargs = _real(mode, (args, kwargs))
        try:
            result = func(*real_args, **real_kwargs)
        except NotImplementedError as error:
            raise _error(name, "no CPU kernel that could be asked") from error
    mode.note(
        "unknown-op",
        f"{name} has no shape rule: sizes are its CPU kernel's, its temporaries are unknown",
    )
    if func._schema.is_mutable:
        first = args[0] if args else None
        return first if isinstance(first, torch.Tensor) else None
    return _fake(mode, result, device)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _real(mode: VirtualMode, value: Any) -> Any:
    if isinstance(value, FakeTensor):
        known = mode.shadows.known(value)
        if known is not None:
            return known.clone()
        if value.layout is torch.sparse_coo:
            return _real_sparse(value)
        real = torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype)
        return real.zero_()
    if isinstance(value, dict):
        return {name: _real(mode, item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_real(mode, item) for item in value)
    return _CPU if isinstance(value, torch.device) else value


def _sparse(mode: VirtualMode, like: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """A fake sparse tensor of the shape of `like` that consists of `parts`."""
    with mode:
        made: torch.Tensor = _aten._sparse_coo_tensor_unsafe.default(*parts, tuple(like.shape))
    return made


def _real_sparse(value: FakeTensor) -> torch.Tensor:
    """As many elements, each in a place of its own: what can be merged or left out is kept."""
    places, values = value._indices(), value._values()
    numbers = torch.arange(places.shape[1])
    rows = []
    for extent in reversed(value.shape[: places.shape[0]]):
        rows.append(numbers % extent)
        numbers = numbers // extent
    indices = torch.stack(rows[::-1]) if rows else torch.empty((0, places.shape[1]))
    zeros = torch.zeros(tuple(values.shape), dtype=values.dtype)
    return torch.sparse_coo_tensor(
        indices.long(), zeros, tuple(value.shape), check_invariants=False
    )


def _fake(mode: VirtualMode, value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        parts = [mode.maker.like(part, device) for part in (value._indices(), value._values())]
        return _sparse(mode, value, parts)
    if isinstance(value, torch.Tensor):
        return mode.maker.like(value, device)
    if isinstance(value, tuple | list):
        return type(value)(_fake(mode, item, device) for item in value)
    return value
