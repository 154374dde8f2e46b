"""`torch.cuda.memory`: every figure comes from the allocator model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.api.device import free_and_total
from ebbtide.vgpu.api.surface import CUDA, Surface
from ebbtide.vgpu.patches import PatchSet


class RawAllocations:
    """Memory taken by `torch.cuda.caching_allocator_alloc`, known by its address."""

    def __init__(self) -> None:
        self._held: dict[int, torch.Tensor] = {}

    def take(self, size: int, stream: int = 0) -> int:
        """Allocate `size` bytes and return their address."""
        tensor = torch.empty(size, dtype=torch.uint8, device=CUDA)
        address = tensor.data_ptr()
        self._held[address] = tensor
        return address

    def give_back(self, address: int) -> None:
        """Free what `take` returned."""
        if self._held.pop(address, None) is None:
            raise RuntimeError(f"invalid device pointer: {address:#x}")


class MemPool:
    """`torch.cuda.MemPool`; its allocations come from the common pool here."""

    _count = 0

    def __init__(self, allocator: Any = None, **options: Any) -> None:
        if allocator is not None:
            raise _custom_allocator()
        MemPool._count += 1
        self.id = (MemPool._count, 0)
        self.is_user_created = True

    @property
    def allocator(self) -> None:
        """Always the caching allocator's own."""
        return None

    def use_count(self) -> int:
        """How many users the pool has."""
        return 1

    def snapshot(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Segments of this pool alone: none are kept apart."""
        return []


def _custom_allocator(*args: Any, **kwargs: Any) -> VirtualGpuError:
    return VirtualGpuError(
        "torch.cuda.memory.CUDAPluggableAllocator loads compiled code that calls the GPU's "
        "driver; the virtual GPU models PyTorch's own caching allocator only. Leave it out of "
        "the run that is predicted."
    )


def _refuse_custom_allocator(*args: Any, **kwargs: Any) -> None:
    raise _custom_allocator()


def _functions(vgpu: Surface) -> dict[str, Any]:
    memory = vgpu.memory
    raw = RawAllocations()
    fraction = [1.0]

    def set_fraction(value: float, device: int = 0) -> None:
        memory.set_fraction(value)
        fraction[0] = value

    def history(*args: Any, **kwargs: Any) -> None:
        """Recording is always on; there is nothing to switch."""

    return {
        "_cuda_memoryStats": lambda device=0: memory.stats(),
        "_cuda_resetPeakMemoryStats": lambda device=0: memory.reset_peak(),
        "_cuda_resetAccumulatedMemoryStats": lambda device=0: None,
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakHostMemoryStats": lambda: None,
        "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
        "_cuda_emptyCache": lambda: memory.empty_cache(),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda device=0: fraction[0],
        "_cuda_memorySnapshot": lambda *args: {
            "segments": memory.snapshot(),
            "device_traces": [[]],
            "allocator_settings": {},
            "external_annotations": [],
        },
        "_cuda_record_memory_history": history,
        "_cuda_record_memory_history_legacy": history,
        "_cuda_isHistoryEnabled": lambda: True,
        "_cuda_attach_out_of_memory_observer": history,
        "_cuda_setMemoryMetadata": history,
        "_cuda_getMemoryMetadata": lambda: "",
        "_cuda_allocationTraceback": lambda address: None,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_getAllocator": lambda: None,
        "_cuda_customAllocator": _refuse_custom_allocator,
        "_cuda_changeCurrentAllocator": _refuse_custom_allocator,
        "_cuda_cudaHostAllocator": lambda: None,
        "_cuda_cudaCachingAllocator_raw_alloc": raw.take,
        "_cuda_cudaCachingAllocator_raw_delete": raw.give_back,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": lambda on: (
            None if on else vgpu.guess("caching", "the caching allocator was switched off: not so")
        ),
        "_cuda_clearCublasWorkspaces": lambda: vgpu.mode.forget_workspaces(),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": lambda: memory.empty_cache(),
        "_accelerator_emptyHostCache": lambda: None,
        "_host_emptyCache": lambda: None,
        "_accelerator_getDeviceStats": lambda device=0: memory.stats(),
        "_accelerator_resetAccumulatedStats": lambda device=0: None,
        "_accelerator_resetPeakStats": lambda device=0: memory.reset_peak(),
        "_accelerator_getMemoryInfo": lambda device=0: free_and_total(vgpu),
    }


def _processes(vgpu: Surface) -> Any:
    def list_gpu_processes(device: Any = None) -> str:
        used = vgpu.spec.usable_bytes - free_and_total(vgpu)[0]
        return f"GPU:0\nprocess {os.getpid():>10d} uses {used / 2**20:>12.3f} MB GPU memory"

    return list_gpu_processes


def _use_mem_pool(vgpu: Surface) -> Any:
    @contextlib.contextmanager
    def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
        vgpu.guess("mempool", "torch.cuda.use_mem_pool: its allocations share the common pool")
        yield

    return use_mem_pool


def _settings(vgpu: Surface) -> Any:
    def set_allocator_settings(text: str) -> None:
        vgpu.guess("settings", f"allocator settings changed while running ({text}): ignored")

    return set_allocator_settings


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Make `torch.cuda.memory` and `torch.accelerator.memory` ask the allocator model."""
    patches.set_all(torch._C, _functions(vgpu))
    patches.set(torch._C, "_accelerator_setAllocatorSettings", _settings(vgpu))
    module = torch.cuda.memory
    patches.set(module.CUDAPluggableAllocator, "__init__", _refuse_custom_allocator)
    processes, use_mem_pool = _processes(vgpu), _use_mem_pool(vgpu)
    patches.everywhere(
        [
            (module.list_gpu_processes, processes),
            (module.use_mem_pool, use_mem_pool),
            (module.MemPool, MemPool),
        ]
    )
