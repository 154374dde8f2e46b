"""The virtual GPU: a context in which `cuda` code runs on fake tensors.

with VirtualGpu("l4") as gpu:
model = Model().cuda()
...
print(gpu.memory.max_memory_reserved())
"""

from __future__ import annotations

import importlib
import logging
import os
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
import torch.optim.optimizer as _optimizer
import torch.utils._foreach_utils as _utils
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ebbtide.errors import VirtualGpuError
from ebbtide.gpus import Gpu, context_bytes, find
from ebbtide.units import parse_release
from ebbtide.vgpu import unlock, verified
from ebbtide.vgpu.allocator import AllocatorConfig, OutOfMemory, TieBreak
from ebbtide.vgpu.kernel import KernelModel
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.live_clock import LiveClock
from ebbtide.vgpu.memory import LiveMemory
from ebbtide.vgpu.mode import VirtualMode
from ebbtide.vgpu.ops import handler_for, register
from ebbtide.vgpu.patches import PatchSet
from ebbtide.vgpu.tape import Tape

_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")
_API = (
    "device",
    "memory",
    "streams",
    "random",
    "tensors",
    "modules",
    "data",
    "saving",
    "compile",
    "distributed",
    "graphs",
    "threads",
    "profiling",
    "quasi_newton",
)


def torch_release() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    return parse_release(torch.__version__)


class VirtualGpu:
    """A GPU that is described, not present. Use it as a context manager, once.

    Args:
        gpu: a name of the catalogue or a spec.
        torch_version: whose rules of kernel choice to follow; the installed one's by default.
        enforce: fail allocations beyond the GPU's memory with torch's own error. Off by
            default, so that a workload which does not fit can be measured to its end.
        allocator: settings of the caching allocator; from the environment by default.

    Attributes:
        spec: the GPU.
        tape: what has happened so far.
        memory: `torch.cuda`'s memory figures.
        clock: the virtual clock.
        guesses: kind to text and count.
    """

    _active: VirtualGpu | None = None

    def __init__(
        self,
        gpu: str | Gpu = "a100-80gb",
        *,
        torch_version: tuple[int, int] | None = None,
        enforce: bool = False,
        allocator: AllocatorConfig | None = None,
        context: KernelContext | None = None,
    ) -> None:
        self.spec = find(gpu) if isinstance(gpu, str) else gpu
        release = torch_version or torch_release()
        self.tape = Tape()
        self.clock = LiveClock(self.spec, self.tape)
        self.guesses: dict[str, list[Any]] = {}
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self.kernels = KernelModel(
            self.spec, context or _context(self.spec, release), self.tape.names
        )
        self.mode = VirtualMode(self.fake_mode, self.tape, self.kernels, handler_for, self.guess)
        self.places = self.mode.places
        self.memory = LiveMemory(
            self.tape,
            self.mode.storages,
            total_bytes=self.spec.usable_bytes,
            other_bytes=context_bytes(self.spec, release).likely,
            config=allocator or AllocatorConfig.from_env(os.environ),
            tie_break=TieBreak.of(release),
            enforce=enforce,
        )
        if enforce:
            self.mode.storages.after_alloc = self._hold_limit
        self._stack: ExitStack | None = None

    @classmethod
    def active(cls) -> VirtualGpu:
        """The virtual GPU that is on in this process.

        Raises:
            VirtualGpuError: none is.
        """
        if cls._active is None:
            raise VirtualGpuError("No virtual GPU is on. Use `with VirtualGpu(...)` around this.")
        return cls._active

    @classmethod
    def mark(cls, tensor: torch.Tensor, category: int) -> None:
        """Say what the memory of `tensor` is for (a `trace.model.Category`).

        Does nothing where no virtual GPU is on, so that workloads run on real devices too.
        """
        if cls._active is not None:
            for row in cls._active.mode.storages.rows_of(tensor):
                cls._active.tape.alloc_category[row] = int(category)

    @classmethod
    def assume(cls, kind: str, text: str) -> None:
        """List an assumption of a workload; nothing where no virtual GPU is on."""
        if cls._active is not None:
            cls._active.guess(kind, text)

    # -- what the parts of the API ask

    @property
    def stream(self) -> int:
        """Number of the current stream; 0 is the default one."""
        return self.tape.stream

    @stream.setter
    def stream(self, number: int) -> None:
        self.tape.stream = number

    def guess(self, kind: str, text: str) -> None:
        """Count something that could not be known."""
        known = self.guesses.get(kind)
        if known is None:
            self.guesses[kind] = [text, 1]
        else:
            known[1] += 1

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a fake tensor if they are known, else dummies, as a real CPU tensor."""
        return self.mode.shadows.value(tensor)

    def make_fake(self, tensor: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
        """A fake tensor of the metadata of `tensor`, on `device`."""
        target = torch.device(device)
        fake = self.fake_mode.from_tensor(tensor.detach())
        if target.type == "cuda":
            return fake.to(target)
        return fake

    def _hold_limit(self) -> None:
        try:
            self.memory.catch_up()
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from None

    # -- on and off

    def __enter__(self) -> VirtualGpu:
        if VirtualGpu._active is not None:
            raise VirtualGpuError(
                "A virtual GPU is on already in this process. Leave it before entering another."
            )
        verified.ensure()
        with ExitStack() as stack:
            unlock.unlock()
            stack.callback(unlock.lock)
            stack.callback(torch.autograd.set_multithreading_enabled, True)
            torch.autograd.set_multithreading_enabled(False)
            torch._C._set_only_lift_cpu_tensors(True)
            stack.callback(torch._C._set_only_lift_cpu_tensors, False)
            for types in (_optimizer._foreach_supported_types, _utils._foreach_supported_types):
                types.append(FakeTensor)
                stack.callback(types.remove, FakeTensor)
            # It logs each error that an operation raises; the program sees the error itself.
            stack.callback(setattr, _FAKE_LOG, "disabled", _FAKE_LOG.disabled)
            _FAKE_LOG.disabled = True
            stack.callback(register(self.mode)._destroy)
            patches = stack.enter_context(PatchSet())
            for name in _API:
                importlib.import_module(f"ebbtide.vgpu.api.{name}").install(self, patches)
            for module in (torch.autograd, torch.autograd.graph):
                patches.wrap(module, "_engine_run_backward", self.places.wrap_engine)
            self.places.watch()
            stack.callback(self.places.unwatch)
            stack.enter_context(self.mode)
            self._stack = stack.pop_all()
        VirtualGpu._active = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        VirtualGpu._active = None
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(kind, error, traceback)


def _context(spec: Gpu, release: tuple[int, int]) -> KernelContext:
    capability = spec.compute_capability
    if capability is None:
        raise VirtualGpuError(
            f"{spec.name} is no CUDA device: its memory figures are in the catalogue, "
            "but no workload can be traced on it. Choose an NVIDIA GPU."
        )
    return KernelContext.of(capability, release, spec.sm_count, os.environ)


__all__ = ["FakeTensor", "VirtualGpu", "torch_release"]
