from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import Builder, training

from ebbtide.prediction.family import DoNotAlignError, family, first_difference
from ebbtide.prediction.replaying import replay
from ebbtide.trace.model import Trace


@given(st.integers(1, 4), st.integers(1, 300))
def test_sizes_are_those_of_the_trace_at_that_batch(layers: int, batch: int) -> None:
    made = family({b: training(b, layers=layers) for b in (2, 5, 9)})
    sizes = made.sizes(batch)
    assert sizes is not None
    assert np.array_equal(sizes.likely, training(batch, layers=layers).allocs.likely_bytes)


def test_work_is_that_of_the_trace_at_that_batch() -> None:
    made = family({b: training(b) for b in (4, 8)})
    other = training(100)
    assert np.array_equal(made.flops.at(100), other.ops.flops)
    assert np.array_equal(made.moved_bytes.at(100), other.ops.moved_bytes)


def test_ranges_keep_their_order() -> None:
    made = family({b: training(b, workspace=(0, 1 << 20, 1 << 22)) for b in (4, 8)})
    sizes = made.sizes(16)
    assert sizes is not None
    assert (sizes.low <= sizes.likely).all()
    assert (sizes.likely <= sizes.high).all()
    assert (sizes.low < sizes.high).any()


def test_two_traces_are_unchecked_three_are_not() -> None:
    two = family({b: training(b) for b in (4, 8)})
    three = family({b: training(b) for b in (4, 8, 16)})
    assert [guess.kind for guess in two.guesses()] == ["curve-unchecked"]
    assert three.guesses() == ()
    assert three.batches == (4, 8, 16)


def quadratic(batch: int) -> Trace:
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::mm")
    b.alloc(4 * batch * batch)
    b.alloc(100 * batch)
    return b.build()


def test_a_quadratic_is_a_guess() -> None:
    made = family({b: quadratic(b) for b in (4, 8, 16)})
    (guess,) = made.guesses()
    assert (guess.kind, guess.count) == ("curve-bent", 1)
    sizes = made.sizes(64)
    assert sizes is not None
    assert sizes.likely.tolist() == [4 * 64 * 64, 6400]


def test_sizes_beyond_counting() -> None:
    made = family({b: quadratic(b << 28) for b in (1, 2)})
    assert made.sizes(1 << 40) is None


def longer(batch: int) -> Trace:
    return training(batch, steps=4)


def test_other_lengths_do_not_align() -> None:
    with pytest.raises(DoNotAlignError, match="batch 4 and 8 do different things"):
        family({4: training(4), 8: longer(8)})


def test_other_operations_do_not_align() -> None:
    one, other = Builder(), Builder()
    for builder, name in ((one, "aten::mm"), (other, "aten::bmm")):
        builder.phase("forward", 1)
        builder.op(name)
        builder.alloc(8)
    with pytest.raises(DoNotAlignError, match=r"operation 0 is aten::mm in one and aten::bmm"):
        family({1: one.build(), 2: other.build()})


def test_what_differs_is_named() -> None:
    trace = training(4)
    same = training(8)
    assert first_difference(trace, same) is None
    categories = same.allocs.category.copy()
    categories[3] = 9
    changed = replace(same, allocs=replace(same.allocs, category=categories))
    assert first_difference(trace, changed) == "allocation 3 has another category, or is missing"
    kinds = same.event_kind.copy()
    kinds[7] = 6
    assert first_difference(trace, replace(same, event_kind=kinds)) == (
        "event 7 is another, or is missing"
    )
    assert first_difference(trace, longer(4)) is not None


def freeing(order: list[int], after: int = 0) -> Trace:
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::mm")
    rows = [b.alloc(size) for size in (512, 1 << 20, 3 << 20, 30 << 20)]
    b.free(*[rows[index] for index in order[: len(order) - after]])
    b.op("aten::mm")
    b.alloc(2 << 20)
    b.free(*[rows[index] for index in order[len(order) - after :]])
    return b.build()


@given(st.permutations(range(4)))
def test_frees_in_a_row_may_come_in_any_order(order: list[int]) -> None:
    one, other = freeing([0, 1, 2, 3]), freeing(order)
    assert first_difference(one, other) is None
    assert replay(one, one.allocs.likely_bytes) == replay(other, other.allocs.likely_bytes)


def test_frees_at_another_place_do_not_align() -> None:
    assert first_difference(freeing([0, 1, 2, 3], after=1), freeing([0, 1, 3, 2], after=1)) == (
        "event 8 is another, or is missing"
    )


def test_names_may_be_numbered_otherwise() -> None:
    one, other = Builder(), Builder()
    other.op("aten::unused")
    other = Builder()
    other.strings["name"] = {"bfloat16": 0, "aten::mm": 1}
    for builder in (one, other):
        builder.phase("forward", 1)
        builder.op("aten::mm")
    assert first_difference(one.build(), other.build()) is None


@pytest.mark.parametrize("count", [1, 4])
def test_two_or_three_traces(count: int) -> None:
    with pytest.raises(ValueError, match="2 or 3 batch sizes"):
        family({batch: training(batch) for batch in range(1, count + 1)})
