"""Expandable segments: address space in which pages are mapped where they are needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.units import GiB, MiB
from ebbtide.vgpu.allocator import (
    AllocatorConfig,
    Block,
    CachingAllocator,
    OutOfMemory,
    memory_snapshot,
)
from ebbtide.vgpu.allocator.blocks import Pool
from ebbtide.vgpu.allocator.expandable import (
    limit_by_choice,
    limit_space,
    map_pages,
    unmap_pages,
)


def make(capacity: int | None = None, text: str = "") -> CachingAllocator:
    config = AllocatorConfig.parse("expandable_segments:True" + ("," + text if text else ""))
    allocator = CachingAllocator(capacity, config=config)
    allocator.heap.log = []
    return allocator


def actions(allocator: CachingAllocator) -> list[tuple[str, int]]:
    return [(action, size) for action, _, size, _ in allocator.heap.log or ()]


def large(allocator: CachingAllocator) -> Pool:
    return allocator.heap.pools[(0, 0)][1]


def test_one_segment_grows_by_pages():
    allocator = make()
    first = allocator.malloc(30 * MiB)
    second = allocator.malloc(30 * MiB)
    assert second.address == first.address + 30 * MiB
    assert actions(allocator) == [("segment_map", 40 * MiB), ("segment_map", 20 * MiB)]
    assert allocator.memory_reserved() == 60 * MiB
    (segment,) = memory_snapshot(allocator)
    assert segment["is_expandable"]
    assert segment["total_size"] == 60 * MiB


def test_small_requests_have_small_pages():
    allocator = make()
    allocator.malloc(100)
    assert actions(allocator) == [("segment_map", 2 * MiB)]


def test_pages_of_another_size():
    allocator = make(text="large_segment_size_mb:64")
    allocator.malloc(30 * MiB)
    assert actions(allocator) == [("segment_map", 64 * MiB)]


def test_even_large_blocks_are_split_to_the_last_512_bytes():
    allocator = make()
    assert allocator.malloc(20 * MiB - 512).size == 20 * MiB - 512
    assert allocator.largest_free_block() == 512


def test_the_free_end_grows_into_what_follows():
    allocator = make()
    allocator.malloc(15 * MiB)
    second = allocator.malloc(30 * MiB)  # 5 MiB are there: 25 are missing, two pages
    assert actions(allocator)[-1] == ("segment_map", 40 * MiB)
    assert second.size == 30 * MiB
    assert allocator.largest_free_block() == 15 * MiB


def test_whole_pages_in_the_middle_are_returned_and_used_again():
    allocator = make()
    held = [allocator.malloc(50 * MiB) for _ in range(3)]
    allocator.free(held[1])
    allocator.empty_cache()
    # Of 50 to 100 MiB, the pages from 60 to 100.
    assert actions(allocator)[-1] == ("segment_unmap", 40 * MiB)
    assert allocator.memory_reserved() == 160 * MiB - 40 * MiB
    assert [s["total_size"] // MiB for s in memory_snapshot(allocator)] == [60, 60]
    again = allocator.malloc(45 * MiB)
    assert again.address == held[1].address
    assert actions(allocator)[-1] == ("segment_map", 40 * MiB)


def test_a_hole_that_is_too_small_is_passed_over():
    allocator = make()
    held = [allocator.malloc(40 * MiB) for _ in range(3)]
    allocator.free(held[1])
    allocator.empty_cache()
    block = allocator.malloc(60 * MiB)
    assert block.address == held[2].address + 40 * MiB


def test_with_nothing_left_the_addresses_are_given_up():
    allocator = make()
    first = allocator.malloc(40 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0
    assert memory_snapshot(allocator) == []
    assert large(allocator).unmapped == {0: []}
    second = allocator.malloc(40 * MiB)
    assert second.address != first.address


def test_holes_are_filled_before_the_end_grows():
    allocator = make()
    held = [allocator.malloc(size * MiB) for size in (30, 10, 30)]  # 70 of 80 MiB
    allocator.free(held[0])
    # The end has 10 MiB and could grow without end: the hole of 30 MiB is smaller.
    assert allocator.malloc(8 * MiB).address == held[0].address


def test_memory_runs_out_and_what_was_mapped_stays():
    allocator = make(100 * MiB)
    allocator.malloc(50 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(60 * MiB)
    assert allocator.memory_allocated() == 50 * MiB
    assert allocator.memory_reserved() == 60 * MiB
    allocator.malloc(45 * MiB)
    assert allocator.memory_reserved() == 100 * MiB


def test_cached_pages_of_another_stream_are_returned_for_a_request():
    allocator = make(100 * MiB)
    block = allocator.malloc(60 * MiB, stream=1)
    allocator.free(block)
    assert allocator.malloc(80 * MiB, stream=2).size == 80 * MiB
    assert allocator.memory_reserved() == 80 * MiB
    assert allocator.stats()["num_alloc_retries"] == 1


def test_each_stream_has_a_segment_of_its_own():
    allocator = make(8 * GiB)
    first = allocator.malloc(30 * MiB, stream=1)
    second = allocator.malloc(30 * MiB, stream=2)
    # 1 1/8 of the device's memory, in whole pages, lies between them.
    assert abs(second.address - first.address) >= 9 * GiB


def test_switched_off_it_is_left_alone():
    allocator = make()
    first = allocator.malloc(40 * MiB)
    allocator.free(first)
    allocator.set_expandable_segments(False)
    second = allocator.malloc(30 * MiB)
    assert second.address != first.address
    allocator.free(second)
    assert allocator.malloc(30 * MiB).address == second.address
    allocator.set_expandable_segments(True)
    assert allocator.malloc(40 * MiB).address == first.address


def test_switched_off_the_next_ordinary_block_is_found():
    allocator = CachingAllocator(None)
    ordinary = allocator.malloc(60 * MiB)
    allocator.set_expandable_segments(True)
    growing = allocator.malloc(40 * MiB)
    allocator.free(growing)
    allocator.free(ordinary)
    allocator.set_expandable_segments(False)
    assert allocator.malloc(40 * MiB).address == ordinary.address


def test_parts_of_expandable_segments_do_not_count_as_split():
    allocator = make()
    held = [allocator.malloc(30 * MiB) for _ in range(3)]
    allocator.free(held[1])
    assert allocator.stats()["inactive_split"]["all"]["current"] == 0
    assert allocator.stats()["segment"]["all"]["current"] == 0
    assert allocator.stats()["num_device_alloc"] == 3


def test_pages_belong_to_expandable_segments_only():
    allocator = CachingAllocator(None)
    block = Block(0, MiB, 0, large(allocator))
    with pytest.raises(ValueError, match="no part of an expandable segment"):
        map_pages(allocator.heap, block, MiB)
    with pytest.raises(ValueError, match="no part of an expandable segment"):
        unmap_pages(allocator.heap, block)


def test_space_can_be_limited_to_less_than_a_request_needs():
    allocator = make()
    first = allocator.malloc(15 * MiB)
    limit_space(allocator.heap, large(allocator), 100 * MiB, 0)
    block = allocator.malloc(100 * MiB)
    assert block.address > first.address + 1 * GiB
    assert allocator.malloc(60 * MiB).address == first.address + 15 * MiB


def test_space_can_be_limited_by_what_was_chosen():
    allocator = make()
    held = [allocator.malloc(size * MiB) for size in (50, 10, 15)]  # 5 MiB free at the end
    allocator.free(held[0])
    free = large(allocator).free[0]
    assert [block.size // MiB for block in free] == [5, 50]
    limit_by_choice(free, 0, 0)  # the end was taken, so it cannot grow to more than 50 MiB
    assert allocator.malloc(4 * MiB).address == held[2].address + 15 * MiB


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 70 * MiB), st.integers(0, 1)), max_size=60))
def test_reserved_memory_is_whole_pages(steps):
    allocator = make(400 * MiB)
    live: list[Block] = []
    for is_free, number, stream in steps:
        if is_free and live:
            allocator.free(live.pop(number % len(live)))
            if number % 5 == 0:
                allocator.empty_cache()
        else:
            try:
                live.append(allocator.malloc(number, stream))
            except OutOfMemory:
                continue
        for segment in memory_snapshot(allocator):
            page = 2 * MiB if segment["segment_type"] == "small" else 20 * MiB
            assert segment["total_size"] % page == 0
        mapped = sum(size for action, size in actions(allocator) if action == "segment_map")
        unmapped = sum(size for action, size in actions(allocator) if action == "segment_unmap")
        assert mapped - unmapped == allocator.memory_reserved() <= 400 * MiB


def test_no_memory_for_even_the_first_page():
    allocator = make(10 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(12 * MiB)
    assert allocator.memory_reserved() == 0
    assert allocator.malloc(100).size == 512


def test_two_ends_that_grow_are_told_apart_by_what_was_chosen():
    """Of two segments the first choice could grow less than the second, as a record shows."""
    allocator = make()
    first = allocator.malloc(35 * MiB)  # 5 MiB free at its end
    limit_space(allocator.heap, large(allocator), 2 * GiB, 0)
    second = allocator.malloc(2 * GiB + 26 * MiB)  # 6 MiB free at its end
    assert second.address > first.address + GiB
    free = large(allocator).free[0]
    assert [block.size // MiB for block in free] == [5, 6]
    limit_by_choice(free, 0, 1)
    assert allocator.malloc(4 * MiB).address == second.address + second.size
