from __future__ import annotations

import csv
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Recording

from ebbtide.errors import SnapshotError
from ebbtide.trace.snapshot import Snapshot, parse_snapshot, parse_snapshot_data, read_snapshot
from ebbtide.trace.snapshot_replay import DeviceReplay, replay_record
from ebbtide.units import MiB
from ebbtide.vgpu.allocator import TieBreak

DATA = Path(__file__).parents[1] / "data" / "snapshots"
BASE = 0x7F00_0000_0000

# What another program derived from the same files before this one was written:
# allocations, segments taken, and the two peaks in MiB, to two places.
REAL = {
    "sil_mem_snapshot": (36, 9, 3098.63, 3606),
    "sil_memory_forward_fp32_128": (681, 0, 534.95, 582),
    "wed_medium_128_inference_memory_snapshot": (1280, 0, 1658.37, 1682),
    "wed_medium_512_inference_memory_snapshot": (1666, 0, 1860.91, 1890),
    "wed_medium_128_training_memory_snapshot": (6526, 0, 6701.09, 6900),
    "wed_medium_1024_training_memory_snapshot": (7591, 0, 23092.19, 24012),
}


def replay(data: dict[str, Any], **options: Any) -> DeviceReplay:
    snapshot = parse_snapshot(pickle.dumps(data))
    (record,) = snapshot.devices.values()
    return replay_record(record, snapshot.config, **options)


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_devices_did_just_this(name: str):
    snapshot = read_snapshot(DATA / f"{name}.pickle.gz")
    (record,) = snapshot.devices.values()
    found = replay_record(record, snapshot.config)
    allocations, segments, allocated_mib, reserved_mib = REAL[name]
    assert found.first_difference is None
    assert (found.allocations, found.same_address) == (allocations, allocations)
    assert (found.segment_allocations, found.same_segment_allocations) == (segments, segments)
    assert found.peak_allocated_bytes / MiB == pytest.approx(allocated_mib, abs=0.005)
    assert found.peak_reserved_bytes == reserved_mib * MiB
    assert found.tie_break is TieBreak.ADDRESS
    assert (found.ties_learned, found.sizes_learned) == (0, 0)


@pytest.mark.parametrize("name", sorted(REAL))
def test_the_end_is_what_the_snapshot_shows(name: str):
    snapshot = read_snapshot(DATA / f"{name}.pickle.gz")
    (record,) = snapshot.devices.values()
    found = replay_record(record, snapshot.config)
    assert found.end_reserved_bytes == sum(segment.size for segment in record.segments)
    assert found.end_allocated_bytes == sum(
        block.size for s in record.segments for block in s.blocks if block.state == 0
    )


# -- snapshots of the reference allocator

SIZES = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 2 * MiB),
    st.sampled_from([MiB, MiB + 1, 2 * MiB, 10 * MiB, 19 * MiB, 20 * MiB, 33 * MiB]),
    st.integers(MiB, 12 * MiB),
    st.integers(9 * MiB, 60 * MiB),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=70,
)


def perform(recording: Recording, steps) -> Recording:
    live: list[int] = []
    for verb, number, stream in steps:
        if verb == "malloc":
            address = recording.malloc(number, stream)
            if address is not None:
                live.append(address)
        elif verb == "free" and live:
            recording.free(live.pop(number % len(live)))
        elif verb == "empty":
            recording.empty_cache()
    return recording


@given(STEPS, st.one_of(st.none(), st.integers(30, 300)))
@settings(max_examples=150)
def test_whole_records(steps, mebibytes):
    """Growth, frees of segments, empty_cache, retries and failures, from the beginning."""
    capacity = None if mebibytes is None else mebibytes * MiB
    recording = perform(Recording(capacity), steps)
    if not recording.events:
        return
    found = replay(recording.snapshot())
    assert found.first_difference is None
    assert found.same
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == recording.peaks()
    assert (found.start_allocated_bytes, found.start_reserved_bytes) == (0, 0)
    assert found.end_allocated_bytes == recording.allocator.allocated
    assert found.end_reserved_bytes == recording.allocator.reserved


@given(STEPS, st.one_of(st.none(), st.integers(60, 300)), st.integers(1, 60))
@settings(max_examples=150)
def test_records_whose_start_was_overwritten(steps, mebibytes, keep):
    """The ring buffer keeps the last events only: the start must be found by rewinding."""
    capacity = None if mebibytes is None else mebibytes * MiB
    recording = perform(Recording(capacity), steps)
    keep = min(keep, len(recording.events))
    if not keep:
        return
    found = replay(recording.snapshot(keep))
    assert found.same, found.first_difference
    allocated, reserved = recording.peaks(keep)
    assert found.peak_reserved_bytes == reserved
    # What a block at the start has beyond its request may never show.
    assert allocated - 16 * MiB <= found.peak_allocated_bytes <= allocated
    assert found.end_reserved_bytes == recording.allocator.reserved


@given(STEPS, st.sampled_from([20, 32]), st.integers(100, 300))
def test_records_with_a_limit_on_splitting(steps, largest, mebibytes):
    recording = perform(Recording(mebibytes * MiB, max_split=largest * MiB), steps)
    if recording.events:
        found = replay(recording.snapshot())
        assert found.same, found.first_difference
        assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == recording.peaks()


@given(STEPS, st.sampled_from([2, 8]))
def test_records_with_rounding(steps, divisions):
    recording = perform(Recording(divisions=divisions), steps)
    if recording.events:
        found = replay(recording.snapshot())
        assert found.same, found.first_difference
        assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == recording.peaks()


def training(recording: Recording, steps: int, batch: int) -> None:
    """Something like training: parameters stay, activations come and go."""
    parameters = [recording.malloc(size * 4096) for size in (900, 300, 300, 1200, 7, 1)]
    for step in range(steps):
        kept = [recording.malloc(batch * (200 + 30 * layer) * 1024) for layer in range(6)]
        for address in reversed(kept):
            gradient = recording.malloc(1200 * 4096)
            recording.free(address)
            recording.free(gradient)
        if step == 1:
            recording.empty_cache()
    assert None not in parameters


def test_growth_by_a_larger_batch():
    recording = Recording()
    for batch in (1, 2, 4):
        training(recording, 3, batch)
    found = replay(recording.snapshot())
    assert found.same
    assert found.segment_frees > 0
    assert found.segment_allocations > 5


def test_a_retry_frees_and_takes_again():
    recording = Recording(100 * MiB)
    for size in (30, 40):
        recording.free(recording.malloc(size * MiB))
    recording.malloc(80 * MiB)
    assert [e["action"] for e in recording.events[-4:]] == [
        "segment_free",
        "segment_free",
        "segment_alloc",
        "alloc",
    ]
    found = replay(recording.snapshot())
    assert found.same
    assert (found.segment_frees, found.same_segment_frees) == (2, 2)


def test_requests_that_failed_are_counted():
    recording = Recording(50 * MiB)
    recording.malloc(40 * MiB)
    assert recording.malloc(40 * MiB) is None
    found = replay(recording.snapshot())
    assert found.out_of_memory == 1
    assert found.same


# -- differences are found, and named


def test_an_address_that_differs():
    recording = Recording()
    first = recording.malloc(2 * MiB)
    second = recording.malloc(2 * MiB)
    data = recording.snapshot()
    events = data["device_traces"][0]
    events[1]["addr"], events[2]["addr"] = second, first
    found = replay(data)
    assert not found.same
    assert found.same_address == 0
    assert found.first_difference is not None
    assert found.first_difference.startswith("event 1, alloc of 2097152 bytes")


def test_a_segment_that_the_model_would_not_take():
    recording = Recording()
    recording.malloc(100)
    data = recording.snapshot()
    extra = BASE + 64 * MiB
    data["device_traces"][0] += [
        {"action": "segment_alloc", "addr": extra, "size": 2 * MiB, "stream": 0},
        {"action": "alloc", "addr": extra, "size": 100, "stream": 0},
    ]
    segment = dict(data["segments"][0], address=extra)
    segment["blocks"] = [
        dict(block, address=block["address"] - BASE + extra) for block in segment["blocks"]
    ]
    data["segments"].append(segment)
    found = replay(data)
    assert (found.allocations, found.same_address) == (2, 1)
    assert (found.segment_allocations, found.same_segment_allocations) == (2, 1)
    assert "event 3" in (found.first_difference or "")


def test_after_a_difference_the_replay_goes_on_to_the_end():
    recording = perform(Recording(), [("malloc", 3 * MiB, 0)] * 30)
    data = recording.snapshot()
    events = data["device_traces"][0]
    first, second = events[1], events[2]
    first["addr"], second["addr"] = second["addr"], first["addr"]
    found = replay(data)
    assert found.same_address == 28


# -- odd records


def test_no_events_at_all():
    recording = perform(Recording(), [("malloc", 5 * MiB, 0), ("malloc", 100, 0)])
    data = recording.snapshot(0)
    found = replay(data)
    assert found.same
    assert (found.events, found.allocations) == (0, 0)
    assert found.peak_allocated_bytes == 5 * MiB + 512
    assert found.peak_reserved_bytes == 22 * MiB


def test_frees_that_waited_for_another_stream():
    events = [
        {"action": "segment_alloc", "addr": BASE, "size": 30 * MiB, "stream": 0},
        {"action": "alloc", "addr": BASE, "size": 30 * MiB, "stream": 0},
        {"action": "free_requested", "addr": BASE, "size": 30 * MiB, "stream": 0},
        {"action": "segment_alloc", "addr": BASE + 30 * MiB, "size": 30 * MiB, "stream": 0},
        {"action": "alloc", "addr": BASE + 30 * MiB, "size": 30 * MiB, "stream": 0},
        {"action": "free_completed", "addr": BASE, "size": 30 * MiB, "stream": 0},
        {"action": "alloc", "addr": BASE, "size": 30 * MiB, "stream": 0},
    ]
    segments = [whole(BASE, 30 * MiB), whole(BASE + 30 * MiB, 30 * MiB)]
    found = replay({"segments": segments, "device_traces": [events]})
    assert found.same
    assert found.peak_allocated_bytes == 60 * MiB
    # Cut after the request to free: the block waits at the start.
    found = replay({"segments": segments, "device_traces": [events[3:]]})
    assert found.same
    assert found.start_allocated_bytes == 0
    assert found.start_reserved_bytes == 30 * MiB


def test_a_free_that_still_waits_at_the_end():
    events = [{"action": "free_requested", "addr": BASE, "size": 30 * MiB, "stream": 0}]
    segment = whole(BASE, 30 * MiB)
    segment["blocks"][0]["state"] = "active_pending_free"
    found = replay({"segments": [segment], "device_traces": [events]})
    assert found.same
    assert (found.start_allocated_bytes, found.end_allocated_bytes) == (30 * MiB, 0)


def test_a_record_without_requests_to_free():
    recording = perform(
        Recording(), [("malloc", 3 * MiB, 0), ("free", 0, 0), ("malloc", 4 * MiB, 0)]
    )
    data = recording.snapshot()
    data["device_traces"][0] = [
        e for e in data["device_traces"][0] if e["action"] != "free_requested"
    ]
    found = replay(data)
    assert found.same
    assert found.peak_allocated_bytes == 4 * MiB


def test_snapshot_events_and_unknown_ones_are_passed_over():
    recording = perform(Recording(), [("malloc", 3 * MiB, 0)])
    data = recording.snapshot()
    data["device_traces"][0].insert(0, {"action": "snapshot", "addr": 0, "size": 5, "stream": 0})
    data["device_traces"][0].append({"action": "user_defined", "addr": 0, "size": 0, "stream": 0})
    assert replay(data).same


def whole(address: int, size: int, **fields: Any) -> dict[str, Any]:
    """A segment that is one block in use."""
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": [
            {
                "address": address,
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
            }
        ],
        **fields,
    }


def test_private_pools():
    """A request to a private pool takes memory although the common one has a block."""
    alloc = {"size": 30 * MiB, "stream": 0}
    events = [
        alloc | {"action": "segment_alloc", "addr": BASE},
        alloc | {"action": "alloc", "addr": BASE},
        alloc | {"action": "free_requested", "addr": BASE},
        alloc | {"action": "free_completed", "addr": BASE},
        alloc | {"action": "segment_alloc", "addr": BASE + 30 * MiB},
        alloc | {"action": "alloc", "addr": BASE + 30 * MiB},
        alloc | {"action": "alloc", "addr": BASE},
    ]
    segments = [whole(BASE, 30 * MiB), whole(BASE + 30 * MiB, 30 * MiB, segment_pool_id=(0, 1))]
    found = replay({"segments": segments, "device_traces": [events]})
    assert found.same, found.first_difference
    # Versions that write the pool into the record say it themselves.
    for event in events[:4] + events[6:]:
        event["pool_id"] = (0, 0)
    for event in events[4:6]:
        event["pool_id"] = (0, 1)
    assert replay({"segments": segments, "device_traces": [events]}).same


def test_several_devices_are_replayed_apart():
    data = perform(Recording(), [("malloc", 3 * MiB, 0)]).snapshot()
    other = perform(Recording(), [("malloc", 50 * MiB, 0), ("malloc", 7, 0)]).snapshot()
    for segment in other["segments"]:
        segment["device"] = 1
    data["segments"] += other["segments"]
    data["device_traces"] += other["device_traces"]
    snapshot = parse_snapshot_data(data)
    found = [replay_record(record, snapshot.config) for record in snapshot.devices.values()]
    assert [one.device for one in found] == [0, 1]
    assert [one.allocations for one in found] == [1, 2]
    assert all(one.same for one in found)


# -- what contradicts itself


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["segments"].clear(), "segments or events are missing"),
        (lambda d: d["segments"].pop(), "contradicts the segments"),
        (lambda d: d["device_traces"][0].pop(2), "contradicts the segments"),
        (
            lambda d: d["device_traces"][0].append(
                {"action": "free_completed", "addr": 5, "size": 512, "stream": 0}
            ),
            "no segment has this address",
        ),
        (
            lambda d: d["device_traces"][0].append(
                {"action": "free_requested", "addr": 5, "size": 512, "stream": 0}
            ),
            "the free was never completed",
        ),
        (
            lambda d: d["device_traces"][0].append(
                {"action": "segment_free", "addr": BASE, "size": 2 * MiB, "stream": 0}
            ),
            "the memory was not given back",
        ),
        (
            lambda d: d["device_traces"][0].append(
                {"action": "segment_alloc", "addr": BASE, "size": 20 * MiB, "stream": 0}
            ),
            "a block in it was in use before",
        ),
        (
            lambda d: d["device_traces"][0].append(
                {"action": "free_completed", "addr": BASE, "size": 40 * MiB, "stream": 0}
            ),
            "it overlaps",
        ),
    ],
)
def test_records_that_contradict_the_segments(change, words: str):
    recording = perform(
        Recording(), [("malloc", 3 * MiB, 0), ("malloc", 2 * MiB, 0), ("malloc", 100, 0)]
    )
    data = recording.snapshot()
    change(data)
    with pytest.raises(SnapshotError) as caught:
        replay(data)
    assert words in str(caught.value)
    assert "event" in str(caught.value)


@given(STEPS, st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["addr", "size"]))
@settings(max_examples=150)
def test_a_spoilt_record_is_refused_or_replayed(steps, place, value, key):
    recording = perform(Recording(), steps)
    data = recording.snapshot()
    events = data["device_traces"][0]
    if not events:
        return
    event = events[place % len(events)]
    event[key] = value * 512
    try:
        found = replay(data)
    except SnapshotError:
        return
    assert 0 <= found.same_address <= found.allocations


def test_a_rule_for_ties_is_needed():
    recording = perform(Recording(), [("malloc", 3 * MiB, 0)])
    with pytest.raises(ValueError, match="at least one rule"):
        replay(recording.snapshot(), tie_breaks=())


# -- ties, which depend on the version of torch


def tie(winner: int) -> dict[str, Any]:
    """Two cached segments of one size, the older at the higher address, and a request."""
    old, new = BASE + 100 * MiB, BASE
    size = {"size": 30 * MiB, "stream": 0}
    events = [
        size | {"action": "segment_alloc", "addr": old},
        size | {"action": "alloc", "addr": old},
        size | {"action": "segment_alloc", "addr": new},
        size | {"action": "alloc", "addr": new},
        size | {"action": "free_requested", "addr": old},
        size | {"action": "free_completed", "addr": old},
        size | {"action": "free_requested", "addr": new},
        size | {"action": "free_completed", "addr": new},
        size | {"action": "alloc", "addr": (old, new)[winner]},
    ]
    segments = [whole(new, 30 * MiB), whole(old, 30 * MiB)]
    segments[winner]["blocks"][0]["state"] = "inactive"
    return {"segments": segments, "device_traces": [events]}


def test_up_to_torch_2_11_the_lower_address_wins():
    found = replay(tie(1))
    assert (found.same, found.tie_break) == (True, TieBreak.ADDRESS)


def test_from_torch_2_12_on_the_older_one_wins():
    found = replay(tie(0))
    assert found.same
    assert found.tie_break in (TieBreak.BLOCK_AGE, TieBreak.SEGMENT_AGE)
    assert not replay(tie(0), tie_breaks=[TieBreak.ADDRESS]).same


def test_ages_before_the_record_are_read_off_it():
    data = tie(0)
    data["device_traces"][0] = data["device_traces"][0][4:]
    assert not replay(data, tie_breaks=[TieBreak.ADDRESS]).same
    found = replay(data, tie_breaks=[TieBreak.SEGMENT_AGE])
    assert found.same
    assert found.ties_learned == 1


def test_what_was_learned_must_hold():
    """First the older one is taken, then the younger: no order of ages explains both."""
    data = tie(0)
    events = data["device_traces"][0][4:]
    old, new = BASE + 100 * MiB, BASE
    size = {"size": 30 * MiB, "stream": 0}
    events += [
        size | {"action": "free_requested", "addr": old},
        size | {"action": "free_completed", "addr": old},
        size | {"action": "alloc", "addr": new},
    ]
    data["device_traces"][0] = events
    data["segments"][0]["blocks"][0]["state"] = "active_allocated"
    data["segments"][1]["blocks"][0]["state"] = "inactive"
    found = replay(data, tie_breaks=[TieBreak.SEGMENT_AGE])
    assert found.ties_learned == 1
    assert found.same_address == found.allocations - 1


# -- blocks at the start that are larger than their requests


def open_size(second: int, request: int) -> dict[str, Any]:
    """A block in use whose end is not known, then 3 MiB free; elsewhere 5 MiB are free.

    The block was given 3.5 MiB for a request of 3 MiB. `request` goes to `second`.
    """
    blocks = [
        (BASE, 3 * MiB + MiB // 2, "active_allocated", 3 * MiB),
        (BASE + 3 * MiB + MiB // 2, 3 * MiB - MiB // 2, "inactive", 0),
        (BASE + 6 * MiB, 4 * MiB, "active_allocated", 4 * MiB),
        (BASE + 10 * MiB, 5 * MiB, "inactive", 0),
        (BASE + 15 * MiB, 5 * MiB, "active_allocated", 5 * MiB),
    ]
    events = [
        {"action": "alloc", "addr": second, "size": request, "stream": 0},
        {"action": "free_requested", "addr": second, "size": request, "stream": 0},
        {"action": "free_completed", "addr": second, "size": request, "stream": 0},
        {"action": "free_requested", "addr": BASE, "size": 3 * MiB, "stream": 0},
        {"action": "free_completed", "addr": BASE, "size": 3 * MiB, "stream": 0},
    ]
    segment = whole(BASE, 20 * MiB)
    segment["blocks"] = [
        {"address": a, "size": s, "state": state, "requested_size": r} for a, s, state, r in blocks
    ]
    merged = segment["blocks"]
    merged[0] |= {"size": 6 * MiB, "state": "inactive"}
    del merged[1]
    return {"segments": [segment], "device_traces": [events]}


def test_a_request_that_does_not_fit_shows_a_larger_block():
    """2.75 MiB would fit behind a block of 3 MiB, but the record has it elsewhere."""
    found = replay(open_size(BASE + 10 * MiB, 3 * MiB - MiB // 4))
    assert found.same, found.first_difference
    assert found.sizes_learned == 1
    assert found.start_allocated_bytes > 12 * MiB


def test_a_request_behind_it_shows_its_end():
    found = replay(open_size(BASE + 3 * MiB + MiB // 2, 2 * MiB))
    assert found.same, found.first_difference
    assert found.start_allocated_bytes == 12 * MiB + MiB // 2


def test_without_such_a_sign_a_block_has_what_was_requested():
    data = open_size(BASE + 10 * MiB, 4 * MiB)
    found = replay(data)
    assert found.same
    assert found.start_allocated_bytes == 12 * MiB
    assert found.sizes_learned == 0


# -- expandable segments

PAGE = 20 * MiB


def mapped(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0}


def growing(*blocks: tuple[int, str], at: int = BASE) -> dict[str, Any]:
    """A mapped stretch with blocks of these sizes."""
    segment = whole(at, sum(size for size, _ in blocks), is_expandable=True)
    segment["blocks"] = []
    for size, state in blocks:
        segment["blocks"].append(
            {"address": at, "size": size, "state": state, "requested_size": size}
        )
        at += size
    return segment


def test_a_segment_that_grows():
    events = [
        mapped("segment_map", BASE, 40 * MiB),
        mapped("alloc", BASE, 30 * MiB),
        mapped("segment_map", BASE + 40 * MiB, PAGE),
        mapped("alloc", BASE + 30 * MiB, 30 * MiB),
    ]
    data = {
        "segments": [growing((30 * MiB, "active_allocated"), (30 * MiB, "active_allocated"))],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": True},
    }
    found = replay(data)
    assert found.same, found.first_difference
    assert (found.segment_allocations, found.peak_reserved_bytes) == (2, 60 * MiB)


def test_pages_that_are_returned_and_mapped_again():
    events = [
        mapped("segment_unmap", BASE, 40 * MiB),
        mapped("segment_map", BASE, PAGE),
        mapped("alloc", BASE, 12 * MiB),
    ]
    data = {
        "segments": [
            growing((12 * MiB, "active_allocated"), (8 * MiB, "inactive")),
            growing((PAGE, "active_allocated"), at=BASE + 40 * MiB),
        ],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": True},
    }
    found = replay(data)
    assert found.same, found.first_difference
    assert (found.start_reserved_bytes, found.peak_reserved_bytes) == (60 * MiB, 60 * MiB)
    assert (found.segment_frees, found.same_segment_frees) == (1, 1)


def test_a_hole_at_the_front_that_the_record_fills():
    """The first pages were not mapped at the start; that they belong to it shows later."""
    events = [mapped("segment_map", BASE, PAGE), mapped("alloc", BASE, 12 * MiB)]
    data = {
        "segments": [
            growing(
                (12 * MiB, "active_allocated"), (8 * MiB, "inactive"), (PAGE, "active_allocated")
            )
        ],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": True},
    }
    found = replay(data)
    assert found.same, found.first_difference


def test_pages_of_a_request_that_failed():
    events = [
        mapped("segment_map", BASE, 40 * MiB),
        mapped("alloc", BASE, 40 * MiB),
        mapped("segment_map", BASE + 40 * MiB, PAGE),
        {"action": "oom", "device_free": 0, "size": 99 * MiB, "stream": 0},
    ]
    data = {
        "segments": [growing((40 * MiB, "active_allocated"), (PAGE, "inactive"))],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": True},
    }
    found = replay(data)
    assert found.end_reserved_bytes == 60 * MiB
    assert found.same, found.first_difference


def test_a_setting_that_was_switched_while_recording():
    ordinary = BASE + 1024 * MiB
    events = [
        mapped("segment_alloc", ordinary, 30 * MiB),
        mapped("alloc", ordinary, 30 * MiB),
        mapped("segment_map", BASE, 40 * MiB),
        mapped("alloc", BASE, 40 * MiB),
    ]
    data = {
        "segments": [growing((40 * MiB, "active_allocated")), whole(ordinary, 30 * MiB)],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": True},
    }
    found = replay(data)
    assert found.same, found.first_difference


def test_many_frees_that_wait_are_replayed_in_time():
    """Looking ahead from each of them to the next request must not cost the square."""
    count = 3000
    events = []
    for n in range(count):
        events.append(mapped("free_requested", BASE + 512 * n, 512))
    for n in range(count):
        events.append(mapped("free_completed", BASE + 512 * n, 512))
    segment = whole(BASE, 2 * MiB, segment_type="small")
    segment["blocks"][0]["state"] = "inactive"
    found = replay({"segments": [segment], "device_traces": [events]})
    assert found.same
    assert found.start_allocated_bytes == count * 512


def test_the_peaks_of_public_measurements():
    """The same figures stand in the table of measured rows that the accuracy check uses."""
    table = Path(__file__).parents[2] / "bench" / "data" / "measured.csv"
    if not table.exists():
        pytest.skip("the table of measured rows is not in this tree")
    with table.open(newline="") as file:
        rows = {row["id"]: float(row["measured_MiB"]) for row in csv.DictReader(file)}
    for name, short in (
        ("wed_medium_128_training_memory_snapshot", "wed-128-train"),
        ("wed_medium_1024_training_memory_snapshot", "wed-1024-train"),
        ("wed_medium_128_inference_memory_snapshot", "wed-128-infer"),
        ("wed_medium_512_inference_memory_snapshot", "wed-512-infer"),
        ("sil_mem_snapshot", "sil-attn"),
        ("sil_memory_forward_fp32_128", "sil-fwd-fp32"),
    ):
        snapshot: Snapshot = read_snapshot(DATA / f"{name}.pickle.gz")
        found = replay_record(next(iter(snapshot.devices.values())), snapshot.config)
        assert round(found.peak_allocated_bytes / MiB, 2) == rows[f"snap-{short}-alloc"]
        assert found.peak_reserved_bytes / MiB == rows[f"snap-{short}-reser"]
