"""What a workload may ask of the place it runs on, and a counter for trials on the CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Every allocation of the caching allocator is a multiple of this (c10/cuda/
# CUDACachingAllocator.cpp, kMinBlockSize, torch 1.0 to 2.13).
BLOCK = 512


class Meter(Protocol):
    """The memory of the device that a workload runs on, in bytes."""

    def reset_peak(self) -> None:
        """Forget the peak so far, as `torch.cuda.reset_peak_memory_stats` does."""

    def allocated(self) -> int:
        """What is allocated now, as `torch.cuda.memory_allocated` says."""

    def reserved(self) -> int:
        """What the allocator holds now, as `torch.cuda.memory_reserved` says."""

    def peak(self) -> int:
        """The peak of what was allocated, as `torch.cuda.max_memory_allocated` says."""

    def note(self, name: str, value: int) -> None:
        """Keep a figure of a moment that only the workload knows."""


class CountingMeter(TorchDispatchMode):
    """Counts storages that operations make, on any device: for trials without a GPU.

    It knows no workspace, no fused kernel and no segment; `sizes` has the bytes of
    each new storage in order, so that the order of operations of a rebuilt workload
    can be compared with a recording.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.notes: dict[str, int] = {}
        self._live: dict[int, int] = {}
        self._now = 0
        self._peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, then count the storages that it returned for the first time."""
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def hold(self, tensors: Any) -> None:
        """Count storages that existed before, such as a model's parameters."""
        for tensor in tensors:
            self._see(tensor.untyped_storage())

    def reset_peak(self) -> None:
        """See `Meter`."""
        self._peak = self._now

    def allocated(self) -> int:
        """See `Meter`."""
        return self._now

    def reserved(self) -> int:
        """See `Meter`; nothing is cached here."""
        return self._now

    def peak(self) -> int:
        """See `Meter`."""
        return self._peak

    def note(self, name: str, value: int) -> None:
        """See `Meter`."""
        self.notes[name] = value

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._live or storage.nbytes() == 0:
            return
        nbytes = storage.nbytes()
        self.sizes.append(nbytes)
        rounded = -(-nbytes // BLOCK) * BLOCK
        self._live[key] = rounded
        self._now += rounded
        self._peak = max(self._peak, self._now)
        weakref.finalize(storage, _forget(weakref.ref(self)), key)

    def _free(self, key: int) -> None:
        self._now -= self._live.pop(key, 0)


def _forget(meter: weakref.ref[CountingMeter]) -> Callable[[int], None]:
    def free(key: int) -> None:
        alive = meter()
        if alive is not None:
            alive._free(key)

    return free
