"""The virtual GPU's memory as the running program sees it.

The allocator model is not in the way of the program: it replays the tape when
the program asks for a figure, or after each allocation if a limit is to be held.
"""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.vgpu.allocator import (
    AllocatorConfig,
    CachingAllocator,
    OutOfMemory,
    TieBreak,
    memory_snapshot,
)
from ebbtide.vgpu.storages import Storages
from ebbtide.vgpu.tape import ALLOC, EMPTY_CACHE, FREE, RECORD_STREAM, Tape


class LiveMemory:
    """Answers `torch.cuda`'s questions about memory.

    Args:
        tape: what has happened.
        storages: which tensor lies where.
        total_bytes: what the program is told; held only if `enforce` is set.
        enforce: whether an allocation beyond it fails, as on the GPU.
        other_bytes: the CUDA context, taken off what is free.

    Attributes:
        failures: how many allocations were refused.
    """

    def __init__(
        self,
        tape: Tape,
        storages: Storages,
        *,
        total_bytes: int,
        other_bytes: int,
        config: AllocatorConfig,
        tie_break: TieBreak,
        enforce: bool,
    ) -> None:
        self._tape = tape
        self._storages = storages
        self._done = 0
        self.failures = 0
        self._blocks: dict[int, Any] = {}
        self.total_bytes = total_bytes
        self.other_bytes = other_bytes
        self.allocator = CachingAllocator(
            total_bytes if enforce else None,
            config=config,
            other_bytes=other_bytes,
            tie_break=tie_break,
        )

    def catch_up(self) -> CachingAllocator:
        """Replay what has happened since the last question."""
        tape, blocks, allocator = self._tape, self._blocks, self.allocator
        kinds, args = tape.kind, tape.arg
        while self._done < len(kinds):
            position = self._done
            self._done += 1
            kind, arg = kinds[position], args[position]
            if kind == ALLOC:
                blocks[arg] = self._malloc(arg)
            elif kind == FREE:
                if arg in blocks:  # else it was refused
                    allocator.free(blocks.pop(arg))
            elif kind == EMPTY_CACHE:
                allocator.empty_cache()
            elif kind == RECORD_STREAM and arg in blocks:
                allocator.record_stream(blocks[arg], tape.extra[position])
        return allocator

    def _malloc(self, row: int) -> Any:
        tape, stream = self._tape, self._tape.alloc_stream[row]
        try:
            return self.allocator.malloc(tape.alloc_bytes[row], stream)
        except OutOfMemory:
            fallback = tape.alloc_fallback[row]
            if fallback < tape.alloc_bytes[row]:
                tape.lower(row, fallback)
                return self.allocator.malloc(fallback, stream)
            tape.void(row)
            self.failures += 1
            raise

    def memory_allocated(self) -> int:
        """As `torch.cuda.memory_allocated()`."""
        return self.catch_up().memory_allocated()

    def memory_reserved(self) -> int:
        """As `torch.cuda.memory_reserved()`."""
        return self.catch_up().memory_reserved()

    def max_memory_allocated(self) -> int:
        """As `torch.cuda.max_memory_allocated()`."""
        return self.catch_up().max_memory_allocated()

    def max_memory_reserved(self) -> int:
        """As `torch.cuda.max_memory_reserved()`."""
        return self.catch_up().max_memory_reserved()

    def reset_peak(self) -> None:
        """As `torch.cuda.reset_peak_memory_stats()`."""
        self.catch_up().reset_peak_stats()

    def empty_cache(self) -> None:
        """As `torch.cuda.empty_cache()`."""
        self._tape.event(EMPTY_CACHE)

    def stats(self) -> dict[str, Any]:
        """As `torch.cuda.memory_stats_as_nested_dict()`."""
        return self.catch_up().stats()

    def snapshot(self) -> list[dict[str, Any]]:
        """As `torch.cuda.memory_snapshot()`."""
        return memory_snapshot(self.catch_up())

    def set_fraction(self, fraction: float) -> None:
        """As `torch.cuda.set_per_process_memory_fraction`."""
        self.catch_up().set_memory_fraction(fraction)

    def free_bytes(self) -> int:
        """What `torch.cuda.mem_get_info()` calls free."""
        return max(0, self.total_bytes - self.other_bytes - self.memory_reserved())

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """As `Tensor.record_stream`."""
        row = self._storages.row_of(tensor)
        if row is not None:
            self._tape.event(RECORD_STREAM, row, stream)
