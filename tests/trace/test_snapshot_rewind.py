from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import SnapshotError
from ebbtide.trace.rewind import StartState, rewind
from ebbtide.trace.snapshot import BlockState, parse_snapshot_data
from ebbtide.units import MiB

BASE = 0x7F00_0000_0000
IN_USE, WAITS, FREE = BlockState.ALLOCATED, BlockState.PENDING, BlockState.INACTIVE
STATES = {IN_USE: "active_allocated", WAITS: "active_pending_free", FREE: "inactive"}


def segment(*blocks: tuple[int, BlockState], at: int = BASE, **fields: Any) -> dict[str, Any]:
    entries = []
    place = at
    for size, state in blocks:
        entries.append(
            {"address": place, "size": size, "requested_size": size, "state": STATES[state]}
        )
        place += size
    return {
        "device": 0,
        "address": at,
        "total_size": place - at,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": entries,
        **fields,
    }


def event(action: str, offset: int, size: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": BASE + offset, "size": size, "stream": stream}


def free(offset: int, size: int) -> list[dict[str, Any]]:
    return [event("free_requested", offset, size), event("free_completed", offset, size)]


def start(segments: list, events: list, **settings: Any) -> StartState:
    snapshot = parse_snapshot_data(
        {"segments": segments, "device_traces": [events], "allocator_settings": settings}
    )
    return rewind(snapshot.devices[0], snapshot.config)


def shape(state: StartState) -> list[list[tuple[int, BlockState]]]:
    return [[(b.size, b.state) for b in s.blocks] for s in state.segments]


def test_without_events_it_is_the_end():
    state = start([segment((3 * MiB, IN_USE), (17 * MiB, FREE))], [])
    assert shape(state) == [[(3 * MiB, IN_USE), (17 * MiB, FREE)]]
    assert state.open_sizes == frozenset()


def test_an_allocation_is_undone():
    state = start([segment((3 * MiB, IN_USE), (17 * MiB, FREE))], [event("alloc", 0, 3 * MiB)])
    assert shape(state) == [[(20 * MiB, FREE)]]


def test_a_free_is_undone():
    state = start([segment((20 * MiB, FREE))], free(4 * MiB, 6 * MiB))
    assert shape(state) == [[(4 * MiB, FREE), (6 * MiB, IN_USE), (10 * MiB, FREE)]]
    assert state.open_sizes == {BASE + 4 * MiB}


def test_a_request_is_rounded():
    state = start([segment((20 * MiB, FREE))], free(0, 3 * MiB + 1))
    assert shape(state)[0][0] == (3 * MiB + 512, IN_USE)
    state = start(
        [segment((20 * MiB, FREE))],
        free(0, 3 * MiB + 1),
        roundup_power2_divisions={str(1 << i): 2 for i in range(16)},
    )
    assert shape(state)[0][0] == (4 * MiB, IN_USE)


@pytest.mark.parametrize("gap", [512, MiB // 2, MiB])
def test_a_gap_of_at_most_1_mib_belongs_to_the_block_before(gap: int):
    size = 5 * MiB
    blocks = (size + gap, FREE), (20 * MiB - size - gap, IN_USE)
    state = start([segment(*blocks)], free(0, size))
    assert shape(state) == [[(size + gap, IN_USE), (20 * MiB - size - gap, IN_USE)]]
    assert state.open_sizes == frozenset()


def test_a_gap_at_the_end_of_the_segment_too():
    state = start([segment((20 * MiB, FREE))], free(0, 19 * MiB))
    assert shape(state) == [[(20 * MiB, IN_USE)]]


def test_a_larger_gap_is_a_cached_block():
    blocks = (7 * MiB, FREE), (13 * MiB, IN_USE)
    state = start([segment(*blocks)], free(0, 5 * MiB))
    assert shape(state) == [[(5 * MiB, IN_USE), (2 * MiB, FREE), (13 * MiB, IN_USE)]]
    assert state.open_sizes == {BASE}


def test_a_neighbour_that_came_later_shows_the_end_of_a_block():
    """Behind 5 MiB in use came, half a MiB further on, a block that is gone again."""
    events = [
        event("alloc", 5 * MiB + MiB // 2, 2 * MiB),
        *free(5 * MiB + MiB // 2, 2 * MiB),
        *free(0, 5 * MiB),
    ]
    state = start([segment((20 * MiB, FREE))], events)
    assert shape(state) == [[(5 * MiB + MiB // 2, IN_USE), (14 * MiB + MiB // 2, FREE)]]
    assert state.open_sizes == frozenset()


def test_small_blocks_have_just_what_was_requested():
    small = segment((2 * MiB, FREE), segment_type="small")
    state = start([small], free(0, 1000))
    assert shape(state) == [[(1024, IN_USE), (2 * MiB - 1024, FREE)]]
    assert state.open_sizes == frozenset()


def test_blocks_above_the_limit_of_splitting_are_whole_segments():
    state = start([segment((64 * MiB, FREE))], free(0, 50 * MiB), max_split_size=32 * MiB)
    assert shape(state) == [[(64 * MiB, IN_USE)]]


def test_segments_come_and_go():
    events = [
        event("segment_free", 100 * MiB, 30 * MiB),
        event("segment_alloc", 0, 20 * MiB),
        event("alloc", 0, 3 * MiB),
        event("segment_free", 200 * MiB, 2 * MiB, stream=5),
    ]
    state = start([segment((3 * MiB, IN_USE), (17 * MiB, FREE))], events)
    assert shape(state) == [[(30 * MiB, FREE)], [(2 * MiB, FREE)]]
    large, small = state.segments
    assert (large.small, small.small) == (False, True)
    assert (large.stream, small.stream) == (0, 5)


def test_a_free_that_was_asked_for_before_the_record_waits():
    state = start([segment((20 * MiB, FREE))], [event("free_completed", 0, 20 * MiB)])
    assert shape(state) == [[(20 * MiB, WAITS)]]


def test_where_no_request_is_recorded_nothing_waits():
    events = [
        event("alloc", 0, 3 * MiB),
        event("free_completed", 0, 3 * MiB),
        event("free_completed", 4 * MiB, 16 * MiB),
    ]
    state = start([segment((20 * MiB, FREE))], events)
    assert shape(state) == [[(4 * MiB, FREE), (16 * MiB, IN_USE)]]


def grown(*blocks: tuple[int, BlockState], at: int = BASE) -> dict[str, Any]:
    return segment(*blocks, at=at, is_expandable=True)


def test_pages_are_unmapped_at_either_end_and_in_the_middle():
    whole = [grown((100 * MiB, FREE))]
    for offset, left in (
        (0, [(80 * MiB, FREE)]),
        (80 * MiB, [(80 * MiB, FREE)]),
        (40 * MiB, [(40 * MiB, FREE), (40 * MiB, FREE)]),
    ):
        state = start(whole, [event("segment_map", offset, 20 * MiB)], expandable_segments=True)
        assert [block for blocks in shape(state) for block in blocks] == left


def test_returned_pages_join_what_they_touch():
    parts = [grown((40 * MiB, FREE)), grown((20 * MiB, FREE), at=BASE + 60 * MiB)]
    state = start(parts, [event("segment_unmap", 40 * MiB, 20 * MiB)], expandable_segments=True)
    assert shape(state) == [[(80 * MiB, FREE)]]
    (joined,) = state.segments
    assert joined.expandable
    assert not joined.small


def test_pages_of_the_small_pool_are_known_by_their_size_or_neighbours():
    state = start([], [event("segment_unmap", 0, 6 * MiB)], expandable_segments=True)
    assert state.segments[0].small
    small = grown((2 * MiB, FREE)) | {"segment_type": "small"}
    state = start([small], [event("segment_unmap", 2 * MiB, 20 * MiB)], expandable_segments=True)
    assert state.segments[0].small
    assert state.segments[0].size == 22 * MiB


def test_a_block_can_be_made_larger_afterwards():
    state = start([segment((20 * MiB, FREE))], free(4 * MiB, 6 * MiB))
    larger = state.with_size(BASE + 4 * MiB, 6 * MiB + 512)
    assert shape(larger) == [[(4 * MiB, FREE), (6 * MiB + 512, IN_USE), (10 * MiB - 512, FREE)]]
    assert larger.segments[0].blocks[2].address == BASE + 10 * MiB + 512
    assert shape(state)[0][1] == (6 * MiB, IN_USE)


def test_a_contradiction_names_the_event():
    with pytest.raises(SnapshotError) as caught:
        start([segment((20 * MiB, FREE))], [event("alloc", 0, 3 * MiB)])
    assert str(caught.value) == (
        f"event 0 of device 0, alloc of 3145728 bytes at {BASE:#x}, contradicts the segments: "
        "no block is in use there afterwards. The record cannot be replayed: segments or events "
        "are missing."
    )


@pytest.mark.parametrize(
    "events",
    [
        [event("segment_map", 0, 20 * MiB)],
        [event("segment_alloc", 0, 10 * MiB)],
        [event("segment_alloc", 50 * MiB, 20 * MiB)],
        [event("segment_unmap", 10 * MiB, 20 * MiB)],
        [*free(15 * MiB, 3 * MiB)],
        [*free(10 * MiB, 3 * MiB)],
        [*free(21 * MiB, 3 * MiB)],
    ],
)
def test_contradictions(events: list):
    blocks = (2 * MiB, FREE), (10 * MiB, IN_USE), (4 * MiB, FREE), (4 * MiB, IN_USE)
    with pytest.raises(SnapshotError, match="contradicts the segments"):
        start([segment(*blocks)], events)
