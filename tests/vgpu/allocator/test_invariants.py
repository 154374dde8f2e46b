"""What must hold after any requests, under any settings."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.units import MiB
from ebbtide.vgpu.allocator import (
    AllocatorConfig,
    Block,
    CachingAllocator,
    OutOfMemory,
    TieBreak,
    memory_snapshot,
)

CONFIGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:40,garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,16:2,>:1]",
    "large_segment_size_mb:32",
    "expandable_segments:True,large_segment_size_mb:32,roundup_power2_divisions:2",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.5",
]
SIZES = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 2 * MiB),
    st.integers(MiB, 12 * MiB),
    st.integers(9 * MiB, 60 * MiB),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 2)),
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("record"), st.integers(0, 10**6), st.integers(0, 2)),
        st.tuples(st.sampled_from(["empty", "done", "reset", "pool"]), st.just(0), st.just(0)),
    ),
    max_size=80,
)


def check(allocator: CachingAllocator, live: list[Block]) -> None:
    segments = memory_snapshot(allocator)
    covered: list[tuple[int, int]] = []
    for segment in segments:
        at = segment["address"]
        inactive_before = False
        for block in segment["blocks"]:
            assert block["address"] == at
            assert block["size"] > 0
            at += block["size"]
            # Free neighbours are merged.
            inactive = block["state"] == "inactive"
            assert not (inactive and inactive_before)
            inactive_before = inactive
        assert at == segment["address"] + segment["total_size"]
        covered.append((segment["address"], at))
    for (_, end), (start, _) in pairwise(covered):
        assert end <= start

    assert sum(s["total_size"] for s in segments) == allocator.memory_reserved()
    assert sum(s["allocated_size"] for s in segments) == allocator.memory_allocated()
    held = {
        (b["address"], b["size"])
        for s in segments
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    }
    assert held == {(block.address, block.size) for block in live}
    assert allocator.memory_allocated() == sum(block.size for block in live)
    for block in live:
        assert block.size >= block.requested
    check_stats(allocator, segments, live)


def check_stats(allocator: CachingAllocator, segments: list, live: list[Block]) -> None:
    stats = allocator.stats()
    for name, parts in stats.items():
        if not isinstance(parts, dict) or "all" not in parts:
            continue
        for part in parts.values():
            assert part["current"] == part["allocated"] - part["freed"] or "reset" in name
            assert 0 <= part["current"] <= part["peak"]
        for figure in ("current", "allocated", "freed"):
            assert parts["all"][figure] == (
                parts["small_pool"][figure] + parts["large_pool"][figure]
            ), name
    blocks = [b for s in segments for b in s["blocks"]]
    active = [b for b in blocks if b["state"] != "inactive"]
    assert stats["active"]["all"]["current"] == len(active)
    assert stats["active_bytes"]["all"]["current"] == sum(b["size"] for b in active)
    assert stats["requested_bytes"]["all"]["current"] == sum(b["requested_size"] for b in active)
    parts = [
        b
        for s in segments
        if not s["is_expandable"]
        for b in s["blocks"]
        if b["state"] == "inactive" and b["size"] < s["total_size"]
    ]
    assert stats["inactive_split"]["all"]["current"] == len(parts)
    assert stats["inactive_split_bytes"]["all"]["current"] == sum(b["size"] for b in parts)
    assert stats["segment"]["all"]["current"] == sum(not s["is_expandable"] for s in segments)


@given(STEPS, st.sampled_from(CONFIGS), st.sampled_from(list(TieBreak)))
@settings(max_examples=250)
def test_always(steps, text, tie_break):
    clock = [0, 0]

    def record_event(stream):
        clock[0] += 1
        return clock[0]

    allocator = CachingAllocator(
        256 * MiB,
        config=AllocatorConfig.parse(text),
        record_event=record_event,
        event_done=lambda event: event <= clock[1],
        tie_break=tie_break,
    )
    live: list[Block] = []
    pools = 0
    for verb, number, stream in steps:
        if verb == "malloc":
            before = allocator.memory_allocated()
            try:
                live.append(allocator.malloc(number, stream))
            except OutOfMemory as error:
                assert allocator.memory_allocated() == before
                assert error.figures.allocated == before
        elif verb == "free" and live:
            allocator.free(live.pop(number % len(live)))
        elif verb == "record" and live:
            allocator.record_stream(live[number % len(live)], stream)
        elif verb == "empty":
            allocator.empty_cache()
        elif verb == "done":
            clock[1] = clock[0]
        elif verb == "reset":
            allocator.reset_peak_stats()
            assert allocator.max_memory_allocated() == allocator.memory_allocated()
            assert allocator.max_memory_reserved() == allocator.memory_reserved()
        elif verb == "pool":
            pools += 1
            allocator.begin_pool((0, pools))
            live.append(allocator.malloc(1000 * pools, stream))
            allocator.end_pool((0, pools))
            allocator.release_pool((0, pools))
        check(allocator, live)
    while live:
        allocator.free(live.pop())
    allocator.empty_cache()
    check(allocator, [])
    assert allocator.memory_reserved() == 0
    assert allocator.largest_free_block() == 0
    assert memory_snapshot(allocator) == []


@given(st.lists(SIZES, min_size=1, max_size=30))
def test_the_same_requests_again_need_nothing_new(sizes):
    allocator = CachingAllocator(None)
    for _ in range(2):
        blocks = [allocator.malloc(size) for size in sizes]
        for block in blocks:
            allocator.free(block)
        reserved = allocator.memory_reserved()
    assert allocator.memory_reserved() == reserved == allocator.max_memory_reserved()


@given(STEPS)
def test_a_lower_limit_never_reserves_more(steps):
    def peak(capacity):
        allocator = CachingAllocator(capacity)
        live = []
        for verb, number, stream in steps:
            if verb == "malloc":
                try:
                    live.append(allocator.malloc(number, stream))
                except OutOfMemory:
                    return None
            elif verb == "free" and live:
                allocator.free(live.pop(number % len(live)))
        return allocator.max_memory_reserved()

    free = peak(None)
    assert free is not None
    limited = peak(200 * MiB)
    assert limited is None or limited <= max(free, 200 * MiB)
    assert peak(free) == free or free == 0
