"""What the replacements in this package ask of the virtual GPU."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

CUDA = torch.device("cuda", 0)
# FakeTensorMode is not made for several threads at once: whoever uses it holds this.
LOCK = threading.RLock()


class Spec(Protocol):
    """The part of `ebbtide.gpus.Gpu` that a program can ask for."""

    @property
    def name(self) -> str: ...
    @property
    def usable_bytes(self) -> int: ...
    @property
    def compute_capability(self) -> tuple[int, int]: ...
    @property
    def sm_count(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...


class Memory(Protocol):
    """The allocator model's answers, in bytes."""

    def memory_allocated(self) -> int: ...
    def memory_reserved(self) -> int: ...
    def max_memory_allocated(self) -> int: ...
    def max_memory_reserved(self) -> int: ...
    def reset_peak(self) -> None: ...
    def empty_cache(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def snapshot(self) -> Any: ...
    def free_bytes(self) -> int: ...
    def set_fraction(self, fraction: float) -> None: ...
    def record_stream(self, tensor: torch.Tensor, stream_id: int) -> None: ...


class Clock(Protocol):
    """The virtual clock, in seconds; streams and events are known by number."""

    def record(self, event: int, stream: int = 0) -> None: ...
    def wait(self, stream: int, event: int) -> None: ...
    def query(self, event: int) -> bool: ...
    def elapsed(self, start: int, end: int) -> float: ...
    def synchronize(self, stream: int | None = None, *, event: int | None = None) -> float: ...


class Surface(Protocol):
    """A virtual GPU as the replacements see it."""

    spec: Spec
    memory: Memory
    clock: Clock
    fake_mode: FakeTensorMode
    mode: Any
    stream: int

    def guess(self, kind: str, text: str) -> None:
        """List something that had to be guessed."""

    def value_of(self, tensor: FakeTensor) -> torch.Tensor:
        """The known value of a fake tensor as a real CPU tensor, or a dummy (listed)."""

    def make_fake(self, tensor: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor on `device` shaped like the real `tensor`, of which it shares nothing."""


def active(vgpu: Surface) -> bool:
    """Whether this thread runs on the virtual GPU now.

    False in data loader workers and wherever the mode has been left on purpose.
    """
    return any(mode is vgpu.mode for mode in _get_current_dispatch_mode_stack())


def faked(vgpu: Surface, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor on the device of the real `tensor`, of which it shares nothing."""
    with LOCK:
        return vgpu.make_fake(tensor.detach(), tensor.device)


def empty_fake(
    vgpu: Surface,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    stride: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """A fake tensor without values; on `cuda` it takes memory of the virtual GPU."""
    make = torch.empty if stride is None else torch.empty_strided
    layout = (shape,) if stride is None else (shape, stride)
    if device.type == "cuda":
        return make(*layout, dtype=dtype, device=device)
    with LOCK, vgpu.fake_mode:
        return make(*layout, dtype=dtype, device=device)
