from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import Builder, training
from tests.prediction.test_alive import MOVES, random_trace

from ebbtide.prediction.replaying import Limit, history, largest_hole, live_peak, replay
from ebbtide.trace.model import Category, Event
from ebbtide.units import MiB
from ebbtide.vgpu.allocator import AllocatorConfig


def test_one_small_allocation() -> None:
    b = Builder()
    b.alloc(100, op=-1)
    trace = b.build()
    run = history(trace, trace.allocs.likely_bytes)
    assert run.allocated.tolist() == [512]
    assert run.reserved.tolist() == [2 * MiB]
    assert run.total.peak_reserved_bytes == 2 * MiB


@given(MOVES)
def test_history_and_replay_are_the_same_run(moves: list[tuple[int, int, int]]) -> None:
    trace = random_trace(moves)
    sizes = trace.allocs.likely_bytes
    run, total = history(trace, sizes), replay(trace, sizes)
    assert run.total == total
    assert run.allocated.max() == total.peak_allocated_bytes
    assert run.reserved.max() == total.peak_reserved_bytes
    assert (run.reserved >= run.allocated).all()
    assert live_peak(trace, sizes) <= total.peak_allocated_bytes


@given(MOVES)
def test_the_ledgers_event_is_at_the_peak_of_reserved(moves: list[tuple[int, int, int]]) -> None:
    trace = random_trace(moves)
    run = history(trace, trace.allocs.likely_bytes)
    event = run.ledger_event
    assert run.reserved[event] == run.reserved.max()
    at_peak = run.allocated[run.reserved == run.reserved.max()]
    assert run.allocated[event] == at_peak.max()


@given(st.integers(1, 40), st.integers(1, 4))
def test_a_limit_of_the_peak_is_enough(batch: int, layers: int) -> None:
    trace = training(batch, layers=layers)
    sizes = trace.allocs.likely_bytes
    free = replay(trace, sizes)
    limit = Limit(usable_bytes=free.peak_reserved_bytes + 77, context_bytes=77)
    assert replay(trace, sizes, limit=limit) == free


def test_out_of_memory_says_so_in_torchs_words() -> None:
    trace = training(4)
    sizes = trace.allocs.likely_bytes
    run = replay(trace, sizes, limit=Limit(usable_bytes=30 * MiB, context_bytes=10 * MiB))
    assert run.out_of_memory is not None
    assert "CUDA out of memory. Tried to allocate" in run.out_of_memory
    cut = history(trace, sizes, limit=Limit(usable_bytes=30 * MiB, context_bytes=10 * MiB))
    assert 0 < len(cut.allocated) < len(trace.event_kind)


def scattered() -> Builder:
    """64 MiB cached in pieces, then a request that no piece can serve."""
    b = Builder()
    pieces = [b.alloc(16 * MiB, op=-1) for _ in range(4)]
    b.free(*pieces)
    b.alloc(40 * MiB, op=-1)
    return b


def test_cached_memory_is_given_back_before_memory_runs_out() -> None:
    trace = scattered().build()
    sizes = trace.allocs.likely_bytes
    assert replay(trace, sizes).peak_reserved_bytes == 104 * MiB
    tight = replay(trace, sizes, limit=Limit(usable_bytes=80 * MiB, context_bytes=0))
    assert tight.out_of_memory is None
    assert tight.peak_reserved_bytes == 64 * MiB
    assert tight.retries == 1


def test_largest_hole() -> None:
    trace = scattered().build()
    sizes = trace.allocs.likely_bytes
    assert largest_hole(trace, sizes, 3) == 0
    assert largest_hole(trace, sizes, 7) == 16 * MiB
    assert largest_hole(trace, sizes, 8) == 16 * MiB


def test_empty_cache_returns_it() -> None:
    b = scattered()
    b.free(4)
    b.event(Event.EMPTY_CACHE)
    trace = b.build()
    run = history(trace, trace.allocs.likely_bytes)
    assert run.reserved[-2] == 104 * MiB
    assert run.reserved[-1] == 0


def test_streams_do_not_share_blocks() -> None:
    b = Builder()
    b.free(b.alloc(16 * MiB, op=-1, stream=0))
    b.alloc(16 * MiB, op=-1, stream=1)
    trace = b.build()
    assert replay(trace, trace.allocs.likely_bytes).peak_reserved_bytes == 32 * MiB


def test_record_stream_keeps_a_block_until_the_next_request() -> None:
    b = Builder()
    row = b.alloc(16 * MiB, op=-1)
    b.event(Event.RECORD_STREAM, row, 1)
    b.free(row)
    trace = b.build()
    run = history(trace, trace.allocs.likely_bytes)
    assert run.allocated.tolist() == [16 * MiB, 16 * MiB, 0]


def test_settings_of_the_allocator_hold() -> None:
    trace = scattered().build()
    sizes = trace.allocs.likely_bytes
    config = AllocatorConfig(expandable_segments=True)
    # One segment of four pages of 20 MiB, whose pieces merge once freed.
    assert replay(trace, sizes, config=config).peak_reserved_bytes == 80 * MiB
    assert largest_hole(trace, sizes, 8, config) == 40 * MiB


def test_no_events() -> None:
    trace = Builder().build()
    run = history(trace, trace.allocs.likely_bytes)
    assert (run.allocated_event, run.ledger_event) == (0, 0)
    assert run.total.peak_reserved_bytes == 0
    assert live_peak(trace, trace.allocs.likely_bytes) == 0


def test_empty_allocations_take_nothing() -> None:
    b = Builder()
    b.free(b.alloc(0, Category.OTHER, op=-1))
    trace = b.build()
    assert np.array_equal(history(trace, trace.allocs.likely_bytes).allocated, [0, 0])
