"""What a temporary is, and the few sums every rule needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.vgpu.kernels.blas import is_contiguous
from ebbtide.vgpu.tensors import TensorMeta

BLOCK = 512
"""The caching allocator rounds every request up to this (kMinBlockSize)."""

Inputs = Sequence[Any]
Outputs = Sequence[TensorMeta]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Memory of the caching allocator that lives only while an operation is issued.

    One `Scratch` is everything that is alive at one time besides the outputs; several of
    one operation follow each other and are never alive together. `after_outputs` counts
    the outputs that are there by then, those included that the call left out (None). The
    sizes are bytes: equal where the source says them, a span where it does not.
    `fallback` is what is taken where the rest does not fit the GPU: cuDNN then goes on to
    an engine with less workspace. None where the operation fails instead.
    """

    low: int
    likely: int
    high: int
    after_outputs: int
    label: str
    fallback: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.likely <= self.high:
            raise ValueError(f"{self.label}: expected 0 <= low <= likely <= high, got {self}")


def rounded(*sizes: int) -> int:
    """Bytes of blocks of these sizes together."""
    return sum(-(-size // BLOCK) * BLOCK for size in sizes)


def exact(label: str, after_outputs: int, *sizes: int) -> tuple[Scratch, ...]:
    """One stage of blocks whose sizes are known; nothing if they are all empty."""
    total = rounded(*sizes)
    if not total:
        return ()
    return (Scratch(low=total, likely=total, high=total, after_outputs=after_outputs, label=label),)


def span(label: str, after_outputs: int, low: int, likely: int, high: int) -> tuple[Scratch, ...]:
    """One stage that is known within bounds only; nothing if it can only be empty."""
    if not high:
        return ()
    return (
        Scratch(
            low=rounded(low),
            likely=rounded(likely),
            high=rounded(high),
            after_outputs=after_outputs,
            label=label,
        ),
    )


def tensors_of(inputs: Inputs) -> list[TensorMeta]:
    """The tensors among the arguments, those in lists included, in order."""
    found: list[TensorMeta] = []
    for value in inputs:
        if isinstance(value, TensorMeta):
            found.append(value)
        elif isinstance(value, tuple | list):
            found.extend(item for item in value if isinstance(item, TensorMeta))
    return found


def argument(inputs: Inputs, position: int, default: Any = None) -> Any:
    """The argument at `position`, or `default` where it was left out."""
    return inputs[position] if position < len(inputs) else default


def copy_bytes(*tensors: TensorMeta | None) -> tuple[int, ...]:
    """Sizes of the copies that `contiguous()` makes of these; none for contiguous ones."""
    return tuple(t.nbytes for t in tensors if t is not None and not is_contiguous(t))


def accumulator_bytes(dtype: str) -> int:
    """Size of the type that CUDA accumulates `dtype` in (aten/src/ATen/AccumulateType.h)."""
    if dtype in {"float64", "complex64"} or "int" in dtype or dtype == "bool":
        return 8
    return 16 if dtype == "complex128" else 4


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step
