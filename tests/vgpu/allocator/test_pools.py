"""Private pools: what graphs and `torch.cuda.use_mem_pool` allocate from."""

from __future__ import annotations

import pytest

from ebbtide.units import MiB
from ebbtide.vgpu.allocator import CachingAllocator, OutOfMemory, memory_snapshot

POOL = (0, 1)


def test_a_private_pool_shares_nothing():
    allocator = CachingAllocator(None)
    common = allocator.malloc(30 * MiB)
    allocator.free(common)
    allocator.begin_pool(POOL)
    private = allocator.malloc(30 * MiB)
    allocator.end_pool(POOL)
    assert private.address != common.address
    allocator.free(private)
    assert allocator.malloc(30 * MiB).address == common.address
    assert allocator.malloc(30 * MiB).address not in (common.address, private.address)
    pools = {s["address"]: s["segment_pool_id"] for s in memory_snapshot(allocator)}
    assert pools[private.address] == POOL
    assert pools[common.address] == (0, 0)


def test_the_innermost_pool_serves():
    allocator = CachingAllocator(None)
    allocator.begin_pool((0, 1))
    allocator.begin_pool((0, 2))
    inner = allocator.malloc(100)
    allocator.end_pool((0, 2))
    outer = allocator.malloc(100)
    assert (inner.pool.id, outer.pool.id) == ((0, 2), (0, 1))


def test_memory_of_a_pool_in_use_is_kept():
    allocator = CachingAllocator(None)
    allocator.begin_pool(POOL)
    block = allocator.malloc(30 * MiB)
    allocator.end_pool(POOL)
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 30 * MiB
    allocator.release_pool(POOL)
    assert allocator.memory_reserved() == 30 * MiB
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0


def test_a_pool_with_two_users_needs_both_gone():
    allocator = CachingAllocator(None)
    for _ in range(2):
        allocator.begin_pool(POOL)
        block = allocator.malloc(30 * MiB)
        allocator.end_pool(POOL)
        allocator.free(block)
    allocator.release_pool(POOL)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 30 * MiB
    allocator.release_pool(POOL)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0


def test_a_released_pool_with_live_blocks_stays():
    allocator = CachingAllocator(None)
    allocator.begin_pool(POOL)
    block = allocator.malloc(30 * MiB)
    allocator.end_pool(POOL)
    allocator.release_pool(POOL)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 30 * MiB
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0


def test_what_a_pool_caches_counts_as_allocated_in_the_message():
    allocator = CachingAllocator(100 * MiB)
    allocator.begin_pool(POOL)
    block = allocator.malloc(60 * MiB)
    allocator.end_pool(POOL)
    allocator.free(block)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(80 * MiB)
    assert (
        "Of the allocated memory 60.00 MiB is allocated by PyTorch, with 60.00 MiB allocated "
        "in private pools (e.g., CUDA Graphs), and 0 bytes is reserved by PyTorch but unallocated."
    ) in str(caught.value)


def test_ending_a_pool_that_was_not_begun_is_refused():
    with pytest.raises(ValueError, match="not currently recording"):
        CachingAllocator(None).end_pool(POOL)


def test_releasing_a_pool_without_users_is_refused():
    allocator = CachingAllocator(None)
    allocator.begin_pool(POOL)
    allocator.end_pool(POOL)
    allocator.release_pool(POOL)
    with pytest.raises(ValueError, match="no user"):
        allocator.release_pool(POOL)
