"""Blocks used on several streams are free only when all got far enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbtide.units import MiB
from ebbtide.vgpu.allocator import CachingAllocator, OutOfMemory, memory_snapshot


class Clock:
    """Events numbered in the order of recording, complete up to `done`."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.done = 0

    def record(self, stream: int) -> int:
        self.recorded.append(stream)
        return len(self.recorded)

    def is_done(self, event: int) -> bool:
        return event <= self.done


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Callable[..., CachingAllocator]:
    def build(capacity: int | None = None) -> CachingAllocator:
        return CachingAllocator(capacity, record_event=clock.record, event_done=clock.is_done)

    return build


def test_a_block_waits_for_the_other_stream(make, clock: Clock):
    allocator = make()
    block = allocator.malloc(30 * MiB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    assert clock.recorded == [1]
    assert allocator.memory_allocated() == 0
    assert allocator.stats()["active_bytes"]["all"]["current"] == 30 * MiB
    (segment,) = memory_snapshot(allocator)
    assert segment["blocks"][0]["state"] == "active_pending_free"
    assert (segment["allocated_size"], segment["active_size"]) == (0, 30 * MiB)

    other = allocator.malloc(30 * MiB)
    assert other.address != block.address
    clock.done = 1
    assert allocator.malloc(30 * MiB).address == block.address


def test_every_stream_must_get_there(make, clock: Clock):
    allocator = make()
    block = allocator.malloc(30 * MiB)
    for stream in (3, 1, 2, 3):
        allocator.record_stream(block, stream)
    allocator.free(block)
    assert clock.recorded == [1, 2, 3]
    clock.done = 2
    allocator.process_events()
    assert allocator.stats()["active"]["all"]["current"] == 1
    clock.done = 3
    allocator.process_events()
    assert allocator.stats()["active"]["all"]["current"] == 0


def test_the_blocks_own_stream_does_not_count(make, clock: Clock):
    allocator = make()
    block = allocator.malloc(100, stream=5)
    allocator.record_stream(block, 5)
    allocator.free(block)
    assert clock.recorded == []


def test_events_of_a_stream_complete_in_order(make, clock: Clock):
    allocator = make()
    first, second = allocator.malloc(30 * MiB), allocator.malloc(40 * MiB)
    for block in (first, second):
        allocator.record_stream(block, 1)
        allocator.free(block)
    asked: list[int] = []

    def only_the_second(event: int) -> bool:
        asked.append(event)
        return event == 2

    allocator.process_events(only_the_second)
    assert asked == [1]
    assert allocator.stats()["active"]["all"]["current"] == 2


def test_a_slow_stream_does_not_hold_up_another(make):
    allocator = make()
    slow, fast = allocator.malloc(30 * MiB), allocator.malloc(40 * MiB)
    allocator.record_stream(slow, 1)
    allocator.record_stream(fast, 2)
    allocator.free(slow)
    allocator.free(fast)
    allocator.process_events(lambda event: event == 2)
    assert allocator.stats()["active_bytes"]["all"]["current"] == 30 * MiB


def test_without_a_clock_events_complete_by_the_next_request():
    allocator = CachingAllocator(None)
    block = allocator.malloc(30 * MiB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    assert allocator.stats()["active"]["all"]["current"] == 1
    assert allocator.malloc(30 * MiB).address == block.address


def test_waiting_blocks_do_not_merge(make, clock: Clock):
    allocator = make()
    first, second = allocator.malloc(2 * MiB), allocator.malloc(2 * MiB)
    allocator.record_stream(first, 1)
    allocator.free(first)
    allocator.free(second)
    sizes = [b["size"] for s in memory_snapshot(allocator) for b in s["blocks"]]
    assert sizes == [2 * MiB, 18 * MiB]
    clock.done = 1
    allocator.process_events()
    sizes = [b["size"] for s in memory_snapshot(allocator) for b in s["blocks"]]
    assert sizes == [20 * MiB]


def test_before_memory_runs_out_all_streams_are_waited_for(make):
    allocator = make(64 * MiB)
    block = allocator.malloc(40 * MiB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    assert allocator.malloc(60 * MiB).size == 60 * MiB
    assert allocator.stats()["num_sync_all_streams"] == 1
    with pytest.raises(OutOfMemory):
        allocator.malloc(60 * MiB)


def test_empty_cache_waits_for_all_streams(make):
    allocator = make()
    block = allocator.malloc(40 * MiB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0


def test_active_peaks_count_waiting_blocks(make):
    allocator = make()
    first = allocator.malloc(30 * MiB)
    allocator.record_stream(first, 1)
    allocator.free(first)
    allocator.malloc(40 * MiB)
    stats = allocator.stats()
    assert stats["allocated_bytes"]["all"]["peak"] == 40 * MiB
    assert stats["active_bytes"]["all"]["peak"] == 70 * MiB
    assert stats["active"]["all"]["peak"] == 2
    allocator.reset_peak_stats()
    assert allocator.stats()["active_bytes"]["all"]["peak"] == 70 * MiB


def test_use_on_a_stream_after_the_free_is_ignored(make, clock: Clock):
    allocator = make()
    block = allocator.malloc(100)
    allocator.free(block)
    allocator.record_stream(block, 1)
    assert clock.recorded == []
    assert allocator.malloc(100).address == block.address


def test_finishing_what_was_not_given_back_is_refused():
    allocator = CachingAllocator(None)
    block = allocator.malloc(100)
    with pytest.raises(ValueError, match="not given back"):
        allocator.finish_free(block)


def test_completed_frees_are_logged():
    allocator = CachingAllocator(None)
    allocator.heap.log = []
    block = allocator.malloc(100, stream=2)
    allocator.record_stream(block, 1)
    allocator.free(block)
    allocator.process_events()
    assert allocator.heap.log[-1] == ("free_completed", block.address, 100, 2)
