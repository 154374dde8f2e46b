"""Tensor metadata for the tests of this folder."""

from __future__ import annotations

from ebbtide.vgpu.tensors import TensorMeta

ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "float8_e4m3fn": 1,
}


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def meta(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorMeta:
    """A tensor of `shape`, contiguous unless `strides` says otherwise."""
    return TensorMeta(
        shape=shape,
        strides=strides_of(shape) if strides is None else strides,
        dtype=dtype,
        itemsize=ITEMSIZE[dtype],
    )
