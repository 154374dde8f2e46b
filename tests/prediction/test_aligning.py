"""Traces that differ in what does not matter are made comparable, and others are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import Builder, training

from ebbtide.prediction.aligning import beginnings, with_equal_rows, without_syncs
from ebbtide.prediction.family import DoNotAlignError, family, first_difference
from ebbtide.prediction.replaying import replay
from ebbtide.prediction.steptime import last_step
from ebbtide.trace.model import Category, Event, Trace

KiB = 1 << 10


def reducing(batch: int, scratch: tuple[int, ...] = (), late: tuple[int, ...] = ()) -> Trace:
    """An operation with workspaces before its output, and after it."""
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::mm")
    first = b.alloc(batch * KiB)
    b.op("aten::sum")
    rows = [b.alloc(size, Category.WORKSPACE) for size in scratch]
    out = b.alloc(64)
    rows += [b.alloc(size, Category.WORKSPACE) for size in late]
    b.free(*rows)
    b.op("aten::mul")
    b.free(first, b.alloc(batch * KiB), out)
    return b.build()


def same(one: Trace, other: Trace) -> bool:
    return first_difference(one, other) is None


def test_equal_traces_stay_as_they_are() -> None:
    for trace, made in zip(
        (training(4), training(8)), with_equal_rows([training(4), training(8)]), strict=True
    ):
        assert same(trace, made)
        assert np.array_equal(trace.allocs.likely_bytes, made.allocs.likely_bytes)


def test_a_missing_workspace_becomes_a_row_of_nothing() -> None:
    without, having = reducing(2), reducing(4, (100,), (200, 300))
    assert not same(without, having)
    padded, kept = with_equal_rows([without, having])
    assert same(padded, kept)
    assert padded.allocs.likely_bytes.tolist() == [2 * KiB, 0, 64, 0, 0, 2 * KiB]
    assert kept.allocs.likely_bytes.tolist() == [4 * KiB, 100, 64, 200, 300, 4 * KiB]
    assert (padded.allocs.category == having.allocs.category).all()
    assert (padded.allocs.op == having.allocs.op).all()


sizes = st.lists(st.integers(1, 1 << 21), max_size=3).map(tuple)


@given(st.lists(st.tuples(sizes, sizes), min_size=2, max_size=3))
def test_what_the_allocator_does_stays_the_same(scratch: list[tuple[tuple[int, ...], ...]]) -> None:
    traces = [reducing(2 + i, *each) for i, each in enumerate(scratch)]
    made = with_equal_rows(traces)
    assert all(same(made[0], each) for each in made[1:])
    for before, after in zip(traces, made, strict=True):
        assert replay(before, before.allocs.likely_bytes) == replay(
            after, after.allocs.likely_bytes
        )


@given(sizes, sizes)
def test_a_curve_through_them_is_exact_at_them(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    traces = {4: reducing(4, one), 8: reducing(8, two)}
    made = family(traces)
    for batch, trace in traces.items():
        found = made.sizes(batch)
        assert found is not None
        assert replay(made.trace, found.likely) == replay(trace, trace.allocs.likely_bytes)


def test_a_workspace_that_is_kept() -> None:
    def kept(batch: int, taken: bool) -> Trace:
        b = Builder()
        b.op("aten::mm")
        if taken:
            b.alloc(500, Category.WORKSPACE)
        b.alloc(batch)
        b.op("aten::mul")
        return b.build()

    padded, _ = with_equal_rows([kept(2, False), kept(4, True)])
    assert padded.allocs.likely_bytes.tolist() == [0, 2]


def test_ranges_of_workspaces_are_padded_too() -> None:
    b = Builder()
    b.op("aten::mm")
    b.free(b.alloc(20, Category.WORKSPACE, low=10, high=30))
    having = b.build()
    b = Builder()
    b.op("aten::mm")
    padded, kept = with_equal_rows([b.build(), having])
    assert [kept.allocs.low_bytes[0], kept.allocs.high_bytes[0]] == [10, 30]
    del padded  # has no allocation at all, which is a difference that stays


@pytest.mark.parametrize("category", [Category.ACTIVATION, Category.TEMPORARY, Category.GRADIENT])
def test_nothing_else_may_be_missing(category: Category) -> None:
    b = Builder()
    b.op("aten::mm")
    b.alloc(4)
    fewer = b.build()
    b.alloc(4, category)
    more = b.build()
    assert with_equal_rows([fewer, more]) == [fewer, more]
    with pytest.raises(DoNotAlignError):
        family({2: fewer, 4: more})


def test_other_operations_are_another_workload() -> None:
    one, other = reducing(2), reducing(4, (100,))
    renamed = ["aten::prod" if name == "aten::sum" else name for name in other.names]
    named = replace(other, names=tuple(renamed))
    with pytest.raises(DoNotAlignError, match=r"aten::sum in one and aten::prod"):
        family({2: one, 4: named})


def test_a_workspace_freed_at_two_places_is_left_alone() -> None:
    def made(late: bool) -> Trace:
        b = Builder()
        b.op("aten::mm")
        row = b.alloc(100, Category.WORKSPACE)
        if not late:
            b.free(row)
        b.op("aten::mul")
        if late:
            b.free(row)
        return b.build()

    traces = [made(False), made(True)]
    assert with_equal_rows(traces) == traces


def test_memory_freed_before_a_workspace_is_there_for_it() -> None:
    def made(scratch: bool) -> Trace:
        b = Builder()
        b.op("aten::mm")
        small, large = b.alloc(8 * KiB), b.alloc(64 * KiB)
        b.op("aten::sum")
        b.free(large)
        rows = [b.alloc(64 * KiB, Category.WORKSPACE)] if scratch else []
        b.free(small, *rows)
        return b.build()

    traces = [made(True), made(False)]
    for before, after in zip(traces, with_equal_rows(traces), strict=True):
        assert replay(before, before.allocs.likely_bytes) == replay(
            after, after.allocs.likely_bytes
        )


def test_workspaces_taken_in_another_order_are_left_alone() -> None:
    def made(swapped: bool) -> Trace:
        b = Builder()
        b.op("aten::mm")
        one = b.alloc(100, Category.WORKSPACE)
        if swapped:
            b.free(one)
        two = b.alloc(100, Category.WORKSPACE)
        b.free(two, *([] if swapped else [one]))
        return b.build()

    traces = [made(False), made(True)]
    assert with_equal_rows(traces) == traces


# -- syncs and ends


def test_without_phases_there_is_no_beginning() -> None:
    b = Builder()
    b.op("aten::mm")
    b.alloc(4)
    fewer = b.build()
    b.op("aten::mul")
    assert beginnings([fewer, b.build()]) is None


def test_what_differs_in_the_first_phase_has_no_beginning() -> None:
    one, other = reducing(2), training(4)
    assert beginnings([one, other]) is None


def logged(trace: Trace, every: int) -> Trace:
    """`trace` with a synchronisation after each so many events."""
    places = np.arange(0, len(trace.event_kind), every)
    return replace(
        trace,
        event_kind=np.insert(trace.event_kind, places, int(Event.SYNC)),
        event_arg=np.insert(trace.event_arg, places, 0),
        event_extra=np.insert(trace.event_extra, places, 0),
    )


def test_syncs_cost_no_memory() -> None:
    quiet = without_syncs(logged(training(4), 7))
    assert same(quiet, training(4))
    made = family({4: logged(training(4), 7), 8: logged(training(8), 9)})
    assert same(made.trace, training(4))
    assert not made.cut


def test_equal_syncs_are_kept() -> None:
    made = family({4: logged(training(4), 7), 8: logged(training(8), 7)})
    assert (made.trace.event_kind == Event.SYNC).any()


def evaluated(batch: int, batches: int, large: bool = False) -> Trace:
    """Training, and an evaluation of so many batches."""
    trace = training(batch, steps=2)
    b = Builder()
    b.phase("evaluation", 1)
    for _ in range(batches):
        b.op("aten::mm")
        b.free(b.alloc((1 << 40) if large else 4 * batch))
    tail = b.build()
    ops, rows = len(trace.ops.name), len(trace.allocs.op)
    names = (*trace.names, *tail.names)
    shift = {Event.OP: ops, Event.PHASE: len(trace.phases), Event.ALLOC: rows, Event.FREE: rows}
    moved = [
        arg + shift[Event(kind)] for kind, arg in zip(tail.event_kind, tail.event_arg, strict=True)
    ]

    def joined(one: object, other: object, **plus: int) -> dict[str, np.ndarray]:
        names = one.__dataclass_fields__  # type: ignore[attr-defined]
        return {
            name: np.concatenate([getattr(one, name), getattr(other, name) + plus.get(name, 0)])
            for name in names
        }

    return replace(
        trace,
        names=names,
        modules=(*trace.modules, *tail.modules),
        lines=(*trace.lines, *tail.lines),
        phases=(*trace.phases, *tail.phases),
        ops=type(trace.ops)(
            **joined(
                trace.ops,
                tail.ops,
                name=len(trace.names),
                rate=len(trace.names),
                module=len(trace.modules),
                line=len(trace.lines),
                phase=len(trace.phases),
            )
        ),
        allocs=type(trace.allocs)(**joined(trace.allocs, tail.allocs, op=ops)),
        event_kind=np.concatenate([trace.event_kind, tail.event_kind]),
        event_arg=np.concatenate([trace.event_arg, np.array(moved)]),
        event_extra=np.concatenate([trace.event_extra, tail.event_extra]),
    )


def test_evaluations_of_other_lengths_are_cut_off() -> None:
    traces = {4: evaluated(4, 3), 8: evaluated(8, 2)}
    assert not same(traces[4], traces[8])
    made = family(traces)
    assert made.cut
    assert [guess.kind for guess in made.guesses()] == ["curve-cut", "curve-unchecked"]
    assert same(made.trace, training(4, steps=2))
    found = made.sizes(8)
    assert found is not None
    whole = replay(traces[8], traces[8].allocs.likely_bytes)
    assert replay(made.trace, found.likely).peak_allocated_bytes == whole.peak_allocated_bytes


def test_the_cut_trace_still_has_a_last_step() -> None:
    (cut, _) = beginnings([evaluated(4, 3), evaluated(8, 2)]) or (None, None)
    assert cut is not None
    assert last_step(cut).any()
    assert {phase.name for phase in cut.phases} == {p.name for p in training(4, steps=2).phases}


def test_a_peak_in_the_end_is_not_cut_off() -> None:
    traces = [evaluated(4, 3, large=True), evaluated(8, 2, large=True)]
    assert beginnings(traces) is None
    with pytest.raises(DoNotAlignError):
        family({4: traces[0], 8: traces[1]})
