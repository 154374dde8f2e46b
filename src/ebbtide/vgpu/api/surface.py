"""What the replacements in this package ask of the virtual GPU."""

from __future__ import annotations

import threading
from typing import Protocol, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ebbtide.errors import VirtualGpuError
from ebbtide.gpus import Gpu
from ebbtide.vgpu.live_clock import LiveClock
from ebbtide.vgpu.memory import LiveMemory
from ebbtide.vgpu.mode import VirtualMode
from ebbtide.vgpu.tape import Tape

CUDA = torch.device("cuda", 0)
# FakeTensorMode is not made for several threads at once: whoever uses it holds this.
LOCK = threading.RLock()


class Surface(Protocol):
    """A virtual GPU as the replacements see it."""

    spec: Gpu
    memory: LiveMemory
    clock: LiveClock
    tape: Tape
    fake_mode: FakeTensorMode
    mode: VirtualMode

    @property
    def stream(self) -> int:
        """Number of the current stream; 0 is the default one."""

    @stream.setter
    def stream(self, number: int) -> None: ...

    def guess(self, kind: str, text: str) -> None:
        """List something that had to be guessed."""

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The known value of a fake tensor as a real CPU tensor, or a dummy (listed)."""

    def make_fake(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A fake tensor on `device` shaped like the real `tensor`, of which it shares nothing."""


def active(vgpu: Surface) -> bool:
    """Whether this thread runs on the virtual GPU now.

    False in data loader workers and wherever the mode has been left on purpose.
    """
    return any(mode is vgpu.mode for mode in _get_current_dispatch_mode_stack())


def capability_of(vgpu: Surface) -> tuple[int, int]:
    """The compute capability; a virtual GPU is always a CUDA device and has one."""
    capability = vgpu.spec.compute_capability
    if capability is None:
        raise VirtualGpuError(f"{vgpu.spec.name} is no CUDA device.")
    return capability


def faked(vgpu: Surface, tensor: torch.Tensor) -> FakeTensor:
    """A fake tensor on the device of the real `tensor`, of which it shares nothing."""
    with LOCK:
        return cast(FakeTensor, vgpu.make_fake(tensor.detach(), tensor.device))


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
