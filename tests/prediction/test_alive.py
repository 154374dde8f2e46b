from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import Builder, training

from ebbtide.prediction.alive import alive_at, alive_rows, by_category, without_numbers
from ebbtide.prediction.parts import CATEGORY_PARTS, Alive
from ebbtide.trace.model import Category, Event, Trace


def random_trace(moves: list[tuple[int, int, int]]) -> Trace:
    """Each move allocates (size, category), and frees the oldest where the third is odd."""
    b = Builder()
    b.phase("forward", 1)
    alive = []
    for size, category, free in moves:
        b.op("aten::add", f"layers.{category}")
        alive.append(b.alloc(size, Category(category)))
        if free % 2:
            b.free(alive.pop(0))
    return b.build()


MOVES = st.lists(
    st.tuples(st.integers(1, 1 << 30), st.integers(0, len(Category) - 1), st.integers(0, 1)),
    min_size=1,
    max_size=30,
)


def test_alive_from_alloc_to_free() -> None:
    b = Builder()
    b.phase("forward", 1)
    first = b.alloc(10)
    second = b.alloc(20)
    b.free(first)
    trace = b.build()
    events = [list(alive_rows(trace, event)) for event in range(4)]
    assert events == [[], [first], [first, second], [second]]


def test_by_category_has_every_part() -> None:
    trace = training(2, layers=2)
    parts = by_category(trace, len(trace.event_kind) - 1, trace.allocs.likely_bytes)
    weight = 4 * 1024 * 1024
    assert list(parts) == list(CATEGORY_PARTS.values())
    assert parts["parameters"] == 2 * weight
    assert parts["optimizer state"] == 4 * weight
    assert parts["activations"] == parts["gradients"] == parts["inputs"] == 0


def test_every_category_has_a_part() -> None:
    assert set(CATEGORY_PARTS) == set(Category)


def test_alive_at_groups_and_orders() -> None:
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::mm", "block.0", "model.py:3")
    b.alloc(10)
    b.alloc(15)
    b.op("aten::mm", "block.1", "model.py:3")
    b.alloc(100, Category.WORKSPACE)
    b.alloc(7, op=-1)
    trace = b.build()
    rows = alive_at(trace, len(trace.event_kind) - 1, trace.allocs.likely_bytes)
    assert rows == (
        Alive(
            category="workspaces",
            module="block.1",
            op="aten::mm",
            line="model.py:3",
            bytes=100,
            count=1,
        ),
        Alive(
            category="activations",
            module="block.0",
            op="aten::mm",
            line="model.py:3",
            bytes=25,
            count=2,
        ),
        Alive(category="activations", module="", op="", line="", bytes=7, count=1),
    )


def test_alive_at_uses_the_sizes_it_is_given() -> None:
    trace = training(2, layers=1)
    event = len(trace.event_kind) - 1
    doubled = alive_at(trace, event, 2 * trace.allocs.likely_bytes)
    single = alive_at(trace, event, trace.allocs.likely_bytes)
    assert [row.bytes for row in doubled] == [2 * row.bytes for row in single]


@given(MOVES, st.data())
def test_alive_adds_up_to_what_was_requested(
    moves: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    trace = random_trace(moves)
    event = data.draw(st.integers(0, len(trace.event_kind) - 1))
    sizes = trace.allocs.likely_bytes
    live = 0
    for kind, row in zip(trace.event_kind[: event + 1], trace.event_arg[: event + 1], strict=True):
        live += int(sizes[row]) * ((kind == Event.ALLOC) - int(kind == Event.FREE))
    rows = alive_at(trace, event, sizes)
    assert sum(row.bytes for row in rows) == live
    assert sum(by_category(trace, event, sizes).values()) == live
    assert sum(row.count for row in rows) == len(alive_rows(trace, event))
    assert [row.bytes for row in rows] == sorted((row.bytes for row in rows), reverse=True)


@given(MOVES)
def test_without_numbers_keeps_the_sum(moves: list[tuple[int, int, int]]) -> None:
    trace = random_trace(moves)
    rows = alive_at(trace, len(trace.event_kind) - 1, trace.allocs.likely_bytes)
    merged = without_numbers(rows)
    assert sum(row.bytes for row in merged) == sum(row.bytes for row in rows)
    assert sum(row.count for row in merged) == sum(row.count for row in rows)
    assert all(row.module in ("layers.*", "") for row in merged)


def test_without_numbers_touches_whole_components_only() -> None:
    def row(module: str) -> Alive:
        return Alive(category="other", module=module, op="", line="", bytes=1, count=1)

    modules = ["h.0.conv1", "h.11.conv1", "h.1.conv2", "12", "res2net"]
    merged = without_numbers(row(module) for module in modules)
    assert sorted(each.module for each in merged) == ["*", "h.*.conv1", "h.*.conv2", "res2net"]


def test_an_empty_trace_has_nothing_alive() -> None:
    trace = Builder().build()
    assert len(alive_rows(trace, 0)) == 0
    assert alive_at(trace, 0, trace.allocs.likely_bytes) == ()
    assert not np.any(list(by_category(trace, 0, trace.allocs.likely_bytes).values()))
