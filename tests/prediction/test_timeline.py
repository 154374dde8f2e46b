from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import Builder, training

from ebbtide.prediction.alive import by_category
from ebbtide.prediction.parts import CATEGORY_PARTS
from ebbtide.prediction.replaying import history
from ebbtide.prediction.timeline import moment, running_ops, thin_out, timeline
from ebbtide.trace.model import Category, Event


def test_parts_add_up_to_allocated_at_each_point() -> None:
    trace = training(3, layers=4)
    sizes = trace.allocs.likely_bytes
    run = history(trace, sizes)
    shown = timeline(trace, sizes, run.allocated, run.reserved)
    for index, event in enumerate(shown.event):
        assert sum(column[index] for column in shown.parts.values()) == run.allocated[event]
        assert shown.reserved[index] == run.reserved[event]


def test_parts_agree_with_the_table_of_each_event() -> None:
    trace = training(3, layers=2)
    sizes = trace.allocs.likely_bytes
    run = history(trace, sizes)
    shown = timeline(trace, sizes, run.allocated, run.reserved)
    for index in range(0, len(shown.event), 7):
        table = by_category(trace, shown.event[index], sizes)
        for part in CATEGORY_PARTS.values():
            assert table[part] == (shown.parts[part][index] if part in shown.parts else 0)


def test_parts_without_bytes_are_left_out() -> None:
    trace = training(3, layers=2)
    run = history(trace, trace.allocs.likely_bytes)
    shown = timeline(trace, trace.allocs.likely_bytes, run.allocated, run.reserved)
    assert "KV cache" not in shown.parts
    assert "activations" in shown.parts


def test_phases_in_order() -> None:
    trace = training(2, layers=1, steps=2)
    run = history(trace, trace.allocs.likely_bytes)
    shown = timeline(trace, trace.allocs.likely_bytes, run.allocated, run.reserved)
    assert [(name, step) for _, name, step in shown.phases] == [
        ("setup", 0),
        ("forward", 1),
        ("backward", 1),
        ("optimizer", 1),
        ("forward", 2),
        ("backward", 2),
        ("optimizer", 2),
    ]
    starts = [start for start, _, _ in shown.phases]
    assert starts == sorted(starts)
    assert starts[0] == 0


def test_a_long_trace_is_thinned_out_and_keeps_its_peaks() -> None:
    trace = training(2, layers=300)
    run = history(trace, trace.allocs.likely_bytes)
    assert len(run.allocated) > 2000
    shown = timeline(trace, trace.allocs.likely_bytes, run.allocated, run.reserved, points=200)
    assert len(shown.event) <= 210
    tops = np.sum(list(shown.parts.values()), axis=0)
    assert tops.max() == run.allocated.max()
    assert max(shown.reserved) == run.reserved.max()
    assert list(shown.event) == sorted(set(shown.event))


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=400),
    st.integers(2, 50),
    st.data(),
)
def test_thin_out_keeps_peak_ends_and_what_it_is_told(
    values: list[int], points: int, data: st.DataObject
) -> None:
    allocated = np.array(values, np.int64)
    reserved = np.maximum.accumulate(allocated)
    keep = data.draw(st.integers(0, len(values) - 1))
    chosen = thin_out(allocated, reserved, [keep], points)
    assert len(chosen) <= max(len(values) if len(values) <= points else 0, points + 4)
    assert allocated[chosen].max() == allocated.max()
    assert reserved[chosen].max() == reserved.max()
    assert {0, len(values) - 1, keep} <= set(chosen.tolist())


def test_running_op_is_the_allocations_own() -> None:
    b = Builder()
    b.phase("forward", 1)
    mm = b.op("aten::mm")
    add = b.op("aten::add")
    b.alloc(8, op=mm)
    b.alloc(8, op=-1)
    assert list(running_ops(b.build())) == [-1, mm, add, mm, add]


def test_an_operation_ends_with_its_phase() -> None:
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::mm", "head", "train.py:5")
    row = b.alloc(8)
    b.phase("backward", 1)
    b.free(row)
    trace = b.build()
    during, after = moment(trace, 2), moment(trace, 4)
    assert (during.phase, during.op, during.module, during.line) == (
        "forward",
        "aten::mm",
        "head",
        "train.py:5",
    )
    assert (after.phase, after.step, after.op, after.module) == ("backward", 1, "", "")


def test_before_the_first_phase() -> None:
    b = Builder()
    b.alloc(8, Category.OTHER, op=-1)
    found = moment(b.build(), 0)
    assert (found.phase, found.step, found.op, found.event) == ("", 0, "", 0)


@pytest.mark.parametrize("kind", [Event.EMPTY_CACHE, Event.SYNC])
def test_other_events_hold_no_memory(kind: Event) -> None:
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::mm", "<head>")
    b.alloc(512)
    b.event(kind)
    trace = b.build()
    run = history(trace, trace.allocs.likely_bytes)
    shown = timeline(trace, trace.allocs.likely_bytes, run.allocated, run.reserved)
    assert shown.parts["activations"] == (0, 0, 512, 512)
    assert shown.ops == ("", "aten::mm in <head>", "aten::mm in <head>", "aten::mm in <head>")
