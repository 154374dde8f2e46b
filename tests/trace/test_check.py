"""A trace that was tampered with, or damaged, is refused in a line."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import training

from ebbtide.errors import EbbtideError, SnapshotError
from ebbtide.gpus import find
from ebbtide.prediction.predict import answer
from ebbtide.trace.check import check
from ebbtide.trace.model import AllocTable, Event, Guess, OpTable, Phase, Trace
from ebbtide.workloads.runner import Traces

SOUND = training(4, workspace=(1, 2, 3))


def with_column(trace: Trace, table: str, name: str, at: int, value: Any) -> Trace:
    """`trace` with one number changed; `table` is ``ops``, ``allocs`` or ``""``."""
    owner = getattr(trace, table) if table else trace
    column = getattr(owner, name).copy()
    column[at] = value
    if not table:
        one: dict[str, Any] = {name: column}
        return replace(trace, **one)
    changed: dict[str, Any] = {table: replace(owner, **{name: column})}
    return replace(trace, **changed)


def bad(value: object) -> Any:
    """A value of a type that the field does not allow."""
    return value


def test_a_recorded_one_is_sound() -> None:
    check(SOUND, "run.trace")


@pytest.mark.parametrize(
    ("table", "name", "value", "message"),
    [
        ("ops", "name", 99, "an index of names points nowhere"),
        ("ops", "rate", -1, "an index of rates points nowhere"),
        ("ops", "module", 99, "an index of modules points nowhere"),
        ("ops", "line", 99, "an index of lines points nowhere"),
        ("ops", "phase", 99, "an index of phases points nowhere"),
        ("ops", "flops", -1, "an impossible cost"),
        ("ops", "seconds", np.nan, "an impossible cost"),
        ("allocs", "category", 10, "an index of categories points nowhere"),
        ("allocs", "op", 1 << 40, "an index of operations points nowhere"),
        ("allocs", "likely_bytes", -5, "an impossible size"),
        ("allocs", "high_bytes", 1 << 62, "an impossible size"),
        ("allocs", "low_bytes", 1 << 42, "upside down"),
        ("", "event_kind", 7, "an event is of no kind"),
    ],
)
def test_what_is_out_of_range_is_named(table: str, name: str, value: Any, message: str) -> None:
    with pytest.raises(SnapshotError, match=rf"^run\.trace is no sound trace: .*{message}"):
        check(with_column(SOUND, table, name, 0, value), "run.trace")


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Event.ALLOC, 1 << 40, "none of the allocations"),
        (Event.OP, -1, "none of the operations"),
        (Event.PHASE, 1 << 40, "none of the phases"),
        (Event.ALLOC, 1, "taken twice or out of order"),
    ],
)
def test_events_point_at_something(kind: Event, change: int, message: str) -> None:
    at = int(np.flatnonzero(kind == SOUND.event_kind)[0])
    with pytest.raises(SnapshotError, match=message):
        check(with_column(SOUND, "", "event_arg", at, change), "run.trace")


def test_memory_is_freed_once_and_after_it_was_taken() -> None:
    first, second = np.flatnonzero(SOUND.event_kind == Event.FREE)[:2].tolist()
    twice = with_column(SOUND, "", "event_arg", second, SOUND.event_arg[first])
    with pytest.raises(SnapshotError, match="freed twice"):
        check(twice, "run.trace")
    last = len(SOUND.allocs.op) - 1
    unused = with_column(SOUND, "", "event_arg", first, last)
    with pytest.raises(SnapshotError, match="freed twice|freed before it is taken"):
        check(unused, "run.trace")
    ends = np.flatnonzero(SOUND.event_kind == Event.ALLOC)[-1]
    cut = replace(
        SOUND,
        event_kind=np.delete(SOUND.event_kind, ends),
        event_arg=np.delete(SOUND.event_arg, ends),
        event_extra=np.delete(SOUND.event_extra, ends),
    )
    with pytest.raises(SnapshotError, match="freed that was never taken"):
        check(cut, "run.trace")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": 5}, "a name is no text"),
        ({"names": (None,)}, "a name is no text"),
        ({"phases": (Phase(name="x", step=bad("1")),)}, "a step or count is no number"),
        ({"guesses": (Guess(kind="x", text="y", count=bad(None)),)}, "a step or count is no"),
        ({"guesses": (Guess(kind="x", text=bad([]), count=1),)}, "a name is no text"),
        ({"meta": []}, "its notes are no table"),
        ({"meta": {"batch": "8"}}, "its batch size is no number"),
        ({"meta": {"batch": 0}}, "its batch size is no number"),
        ({"event_extra": np.zeros(3, np.int64)}, "its events differ in length"),
        ({"event_arg": np.zeros((2, 2), np.int64)}, "its events are no columns"),
        ({"event_arg": np.array(["x"] * len(SOUND.event_arg))}, "its events are no numbers"),
    ],
)
def test_other_parts(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        check(replace(SOUND, **change), "run.trace")


columns = st.sampled_from(
    [
        *(("ops", each.name) for each in fields(OpTable)),
        *(("allocs", each.name) for each in fields(AllocTable)),
        *(("", name) for name in ("event_kind", "event_arg", "event_extra")),
    ]
)


@given(st.lists(st.tuples(columns, st.integers(0, 10**6), st.integers(-3, 300)), max_size=3))
def test_what_passes_can_be_answered(changes: list[tuple[tuple[str, str], int, int]]) -> None:
    trace = SOUND
    for (table, name), at, value in changes:
        length = len(getattr(getattr(trace, table) if table else trace, name))
        value = value % 256 if name == "event_kind" else value
        trace = with_column(trace, table, name, at % length, value)
    try:
        check(trace, "run.trace")
    except SnapshotError:
        return
    try:
        (made,) = answer(Traces(answer=trace), [find("l4")])
    except EbbtideError:
        return
    assert sum(made.ledger.values()) == made.process_bytes.likely
