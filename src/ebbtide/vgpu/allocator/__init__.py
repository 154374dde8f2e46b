"""The caching allocator of PyTorch's CUDA backend, as a model without a device."""

from ebbtide.vgpu.allocator.allocator import CachingAllocator
from ebbtide.vgpu.allocator.blocks import DEFAULT_POOL, Block, PoolId, TieBreak
from ebbtide.vgpu.allocator.config import AllocatorConfig
from ebbtide.vgpu.allocator.driver import Driver, VirtualDriver
from ebbtide.vgpu.allocator.oom import MemoryFigures, OutOfMemory
from ebbtide.vgpu.allocator.snapshot import memory_snapshot

__all__ = [
    "DEFAULT_POOL",
    "AllocatorConfig",
    "Block",
    "CachingAllocator",
    "Driver",
    "MemoryFigures",
    "OutOfMemory",
    "PoolId",
    "TieBreak",
    "VirtualDriver",
    "memory_snapshot",
]
