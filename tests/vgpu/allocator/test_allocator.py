from __future__ import annotations

import pytest

from ebbtide.units import GiB, MiB
from ebbtide.vgpu.allocator import (
    AllocatorConfig,
    CachingAllocator,
    OutOfMemory,
    VirtualDriver,
    memory_snapshot,
)


def blocks(allocator: CachingAllocator) -> list[tuple[int, str]]:
    """Size and state of every block, in the order of addresses."""
    return [
        (block["size"], block["state"])
        for segment in memory_snapshot(allocator)
        for block in segment["blocks"]
    ]


def configured(text: str, capacity: int | None = None) -> CachingAllocator:
    return CachingAllocator(capacity, config=AllocatorConfig.parse(text))


def test_a_small_request_takes_two_mebibytes_and_splits_them():
    allocator = CachingAllocator(None)
    block = allocator.malloc(1000)
    assert (block.size, block.requested) == (1024, 1000)
    assert allocator.memory_allocated() == 1024
    assert allocator.memory_reserved() == 2 * MiB
    assert allocator.largest_free_block() == 2 * MiB - 1024
    assert allocator.unallocated_bytes() == 2 * MiB - 1024


def test_a_medium_request_takes_twenty_mebibytes():
    allocator = CachingAllocator(None)
    assert allocator.malloc(5 * MiB).size == 5 * MiB
    assert allocator.memory_reserved() == 20 * MiB


def test_what_is_too_little_to_split_stays_with_the_block():
    allocator = CachingAllocator(None)
    whole = allocator.malloc(19 * MiB)  # of 20 MiB: 1 MiB remains, not more
    assert whole.size == 20 * MiB
    allocator.free(whole)
    part = allocator.malloc(19 * MiB - 512)
    assert (part.address, part.size) == (whole.address, 19 * MiB - 512)
    assert allocator.largest_free_block() == MiB + 512


def test_the_best_fit_is_the_smallest_then_the_lowest():
    allocator = CachingAllocator(None)
    held = [allocator.malloc(size * MiB) for size in (40, 30, 30, 50)]
    for block in held:
        allocator.free(block)
    assert allocator.malloc(29 * MiB + 1).address == held[1].address
    assert allocator.malloc(29 * MiB + 1).address == held[2].address
    assert allocator.malloc(29 * MiB + 1).address == held[0].address


def test_neighbours_merge_whatever_the_order_of_frees():
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)):
        allocator = CachingAllocator(None)
        held = [allocator.malloc(2 * MiB) for _ in range(3)]
        for index in order:
            allocator.free(held[index])
        assert blocks(allocator) == [(20 * MiB, "inactive")]


def test_small_and_large_blocks_never_mix():
    allocator = CachingAllocator(None)
    allocator.free(allocator.malloc(2 * MiB))
    allocator.malloc(100)
    assert [s["segment_type"] for s in memory_snapshot(allocator)] == ["large", "small"]


def test_each_stream_has_memory_of_its_own():
    allocator = CachingAllocator(None)
    first = allocator.malloc(3 * MiB, stream=7)
    allocator.free(first)
    assert allocator.malloc(3 * MiB, stream=8).address != first.address
    assert allocator.malloc(3 * MiB, stream=7).address == first.address


def test_an_empty_request_gets_nothing():
    allocator = CachingAllocator(None)
    block = allocator.malloc(0)
    assert (block.address, block.size) == (0, 0)
    allocator.free(block)
    assert allocator.memory_reserved() == 0
    assert allocator.stats()["allocation"]["all"]["allocated"] == 0


def test_a_negative_request_is_refused():
    with pytest.raises(ValueError, match="-1 bytes"):
        CachingAllocator(None).malloc(-1)


def test_freeing_twice_is_refused():
    allocator = CachingAllocator(None)
    block = allocator.malloc(100)
    allocator.free(block)
    with pytest.raises(ValueError, match="invalid device pointer"):
        allocator.free(block)


def test_empty_cache_returns_whole_segments_only():
    allocator = CachingAllocator(None)
    whole = allocator.malloc(30 * MiB)
    parts = [allocator.malloc(2 * MiB) for _ in range(2)]
    allocator.free(whole)
    allocator.free(parts[0])
    allocator.empty_cache()
    assert allocator.memory_reserved() == 20 * MiB
    allocator.free(parts[1])
    assert allocator.memory_reserved() == 20 * MiB
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0


def test_peaks_stay_and_can_be_reset():
    allocator = CachingAllocator(None)
    big = allocator.malloc(100 * MiB)
    allocator.free(big)
    allocator.empty_cache()
    allocator.malloc(3 * MiB)
    assert allocator.max_memory_allocated() == 100 * MiB
    assert allocator.max_memory_reserved() == 100 * MiB
    allocator.reset_peak_stats()
    assert allocator.max_memory_allocated() == 3 * MiB
    assert allocator.max_memory_reserved() == 20 * MiB


def test_the_cache_is_returned_before_memory_runs_out():
    allocator = CachingAllocator(100 * MiB)
    for size in (30, 40):
        allocator.free(allocator.malloc(size * MiB))
    assert allocator.memory_reserved() == 70 * MiB
    block = allocator.malloc(80 * MiB)
    assert block.size == 80 * MiB
    assert allocator.memory_reserved() == 80 * MiB
    assert allocator.stats()["num_alloc_retries"] == 1
    assert allocator.stats()["num_ooms"] == 0


def test_the_limit_holds_exactly():
    allocator = CachingAllocator(100 * MiB, other_bytes=20 * MiB)
    assert allocator.memory_free() == 80 * MiB
    allocator.malloc(80 * MiB)
    assert allocator.memory_free() == 0
    with pytest.raises(OutOfMemory):
        allocator.malloc(1)
    assert allocator.stats()["num_ooms"] == 1


def test_a_device_without_a_limit_has_no_figure_for_free_memory():
    assert CachingAllocator(None).memory_free() is None
    assert VirtualDriver(None).free_bytes is None
    assert VirtualDriver(5).free_bytes == 5


def test_an_allocation_that_failed_changes_nothing():
    allocator = CachingAllocator(64 * MiB)
    held = allocator.malloc(40 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MiB)
    assert allocator.memory_allocated() == 40 * MiB
    allocator.free(held)
    assert allocator.malloc(60 * MiB).size == 60 * MiB


def test_a_share_of_the_memory():
    allocator = CachingAllocator(1 * GiB, fraction=0.5)
    assert allocator.allowed_bytes == 512 * MiB
    allocator.malloc(500 * MiB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(30 * MiB)
    assert "512.00 MiB allowed; " in str(caught.value)
    allocator.set_memory_fraction(1.0)
    assert allocator.allowed_bytes is None
    allocator.malloc(30 * MiB)


def test_the_share_can_be_configured():
    allocator = configured("per_process_memory_fraction:0.25", 1 * GiB)
    assert allocator.allowed_bytes == 256 * MiB


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_an_impossible_share_is_refused(fraction: float):
    with pytest.raises(ValueError, match="invalid fraction"):
        CachingAllocator(1 * GiB).set_memory_fraction(fraction)


def test_blocks_above_the_limit_are_not_split():
    allocator = configured("max_split_size_mb:32")
    big = allocator.malloc(64 * MiB)
    allocator.free(big)
    small = allocator.malloc(12 * MiB)  # below the limit: does not get the big block
    assert small.address != big.address
    within = allocator.malloc(50 * MiB)  # at most 20 MiB less than what is cached
    assert (within.address, within.size) == (big.address, 64 * MiB)
    allocator.free(within)
    other = allocator.malloc(44 * MiB)  # 20 MiB less
    assert other.address != big.address
    stats = allocator.stats()
    assert stats["oversize_segments"]["current"] == 2
    assert stats["oversize_allocations"]["current"] == 1
    assert stats["max_split_size"] == 32 * MiB


def test_how_much_too_large_a_block_may_be_can_be_configured():
    allocator = configured("max_split_size_mb:32,max_non_split_rounding_mb:40")
    big = allocator.malloc(80 * MiB)
    allocator.free(big)
    assert allocator.malloc(42 * MiB).address == big.address


def test_big_blocks_go_back_one_at_a_time_before_everything_does():
    allocator = configured("max_split_size_mb:20", 200 * MiB)
    first, second = allocator.malloc(90 * MiB), allocator.malloc(60 * MiB)
    small = allocator.malloc(100)
    for block in (first, second, small):
        allocator.free(block)
    allocator.malloc(120 * MiB)
    # 90 MiB did not suffice, both went; the small segment stayed cached.
    assert allocator.memory_reserved() == 122 * MiB
    assert allocator.stats()["num_alloc_retries"] == 0


def test_a_single_big_block_that_suffices_goes_alone():
    allocator = configured("max_split_size_mb:20", 200 * MiB)
    held = [allocator.malloc(size * MiB) for size in (100, 60)]
    for block in held:
        allocator.free(block)
    allocator.malloc(78 * MiB)  # 100 MiB is too large to use, but frees enough
    assert allocator.memory_reserved() == (60 + 78) * MiB


def test_old_cached_segments_are_collected_past_the_threshold():
    allocator = CachingAllocator(
        400 * MiB,
        config=AllocatorConfig.parse("garbage_collection_threshold:0.5"),
        fraction=0.9,
    )
    old = allocator.malloc(60 * MiB)
    allocator.free(old)
    young = allocator.malloc(100 * MiB)
    for _ in range(5):
        allocator.free(allocator.malloc(20 * MiB))
    allocator.free(young)
    assert allocator.memory_reserved() == 160 * MiB  # 20 MiB came out of the 60
    allocator.malloc(110 * MiB)
    assert allocator.memory_reserved() == 270 * MiB  # below 0.5 of what is allowed: nothing
    allocator.malloc(120 * MiB)
    assert allocator.memory_reserved() == 270 * MiB - 60 * MiB - 100 * MiB + 120 * MiB
    assert allocator.stats()["num_alloc_retries"] == 0


def test_without_a_share_nothing_is_collected():
    allocator = configured("garbage_collection_threshold:0.1", 400 * MiB)
    allocator.free(allocator.malloc(100 * MiB))
    allocator.malloc(200 * MiB)
    assert allocator.memory_reserved() == 300 * MiB


def test_a_config_with_another_large_segment():
    allocator = configured("large_segment_size_mb:64")
    allocator.malloc(2 * MiB)
    assert allocator.memory_reserved() == 64 * MiB


def test_the_log_names_what_went_to_and_from_the_driver():
    allocator = CachingAllocator(None)
    allocator.heap.log = []
    block = allocator.malloc(30 * MiB, stream=3)
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.heap.log == [
        ("segment_alloc", block.address, 30 * MiB, 3),
        ("segment_free", block.address, 30 * MiB, 3),
    ]


def test_a_block_shows_what_it_is():
    allocator = CachingAllocator(None)
    block = allocator.malloc(100)
    assert repr(block) == f"Block(address={block.address:#x}, size=512, allocated)"
    allocator.record_stream(block, 1)
    allocator.free_later(block)
    assert "waiting" in repr(block)
    allocator.finish_free(block)
    assert "free" in repr(block)


def test_memory_for_a_request_can_be_taken_afresh():
    allocator = CachingAllocator(None)
    first = allocator.malloc(30 * MiB)
    allocator.free(first)
    again = allocator.malloc_in(30 * MiB, 0, (0, 0), afresh=True)
    assert again.address != first.address
    assert allocator.malloc_in(30 * MiB, 0, (0, 0)).address == first.address
