from __future__ import annotations

import pytest
from tests.prediction.builder import training
from tests.prediction.samples import device, three

from ebbtide.prediction.build import FIGURES
from ebbtide.prediction.curve import BATCHES
from ebbtide.prediction.replaying import Limit, replay
from ebbtide.prediction.sweep import predict_batches
from ebbtide.vgpu.allocator import AllocatorConfig


def test_several_gpus() -> None:
    t4, l4, a100 = three()
    assert [each.fits for each in three()] == [False, True, True]
    assert t4.largest_batch == 0
    assert l4.largest_batch is not None
    assert a100.largest_batch is not None
    assert 64 <= l4.largest_batch < a100.largest_batch
    small, large = ({p.batch: p.reserved_bytes for p in each.curve} for each in (t4, a100))
    assert set(large) - set(small) <= {a100.largest_batch}  # a row of its own, where one fits
    assert {batch: large[batch] for batch in small} == small
    assert a100.largest_batch in large


def test_the_largest_batch_in_the_verdict_is_true() -> None:
    (made,) = predict_batches({b: training(b) for b in (4, 8)}, 4, [device("t4")], wanted=FIGURES)
    assert made.largest_batch is not None
    assert made.batch_cap != made.largest_batch
    limit = Limit(usable_bytes=made.usable_bytes, context_bytes=made.context_bytes.likely)
    for batch, fits in ((made.largest_batch, True), (made.largest_batch + 1, False)):
        trace = training(batch)
        run = replay(trace, trace.allocs.likely_bytes, limit=limit)
        assert (run.out_of_memory is None) == fits


def test_the_batch_asked_for_is_on_the_curve_with_the_same_figures() -> None:
    (made,) = predict_batches({b: training(b) for b in (5, 10)}, 5, [device("l4")], wanted=FIGURES)
    assert [point.batch for point in made.curve] == sorted({5, made.largest_batch, *BATCHES})
    (own,) = [point for point in made.curve if point.batch == 5]
    assert own.reserved_bytes == made.peak_reserved_bytes
    assert own.process_bytes == made.process_bytes
    assert own.step_s == pytest.approx(made.step_s)
    assert own.fits == made.fits


def test_the_middle_trace_may_be_the_one_asked_for() -> None:
    traces = {b: training(b) for b in (4, 8, 16)}
    (made,) = predict_batches(traces, 8, [device("l4")], wanted=FIGURES)
    alone = replay(traces[8], traces[8].allocs.likely_bytes)
    assert made.peak_reserved_bytes == alone.peak_reserved_bytes
    assert made.guesses == ()


def test_one_trace_has_no_curve() -> None:
    (made,) = predict_batches({4: training(4)}, 4, [device("l4")], wanted=FIGURES)
    assert made.curve == ()
    assert made.largest_batch is None
    assert made.best_batch is None


def test_traces_that_do_not_align_are_their_own_curve() -> None:
    traces = {4: training(4), 8: training(8, steps=5)}
    (made,) = predict_batches(traces, 4, [device("l4")], wanted=FIGURES)
    assert [point.batch for point in made.curve] == [4, 8]
    for point in made.curve:
        trace = traces[point.batch]
        assert point.reserved_bytes == (
            replay(trace, trace.allocs.likely_bytes).peak_reserved_bytes
        )
    assert made.largest_batch is None
    assert made.best_batch is not None
    assert [guess.kind for guess in made.guesses] == ["curve-traced"]
    assert "do different things" in made.guesses[0].text


def test_settings_and_cap_reach_the_replays() -> None:
    traces = {b: training(b, width=2048) for b in (4, 8)}
    config = AllocatorConfig(expandable_segments=True)
    (plain,) = predict_batches(traces, 4, [device("l4")], wanted=FIGURES, cap=10)
    (expandable,) = predict_batches(traces, 4, [device("l4")], wanted=FIGURES, config=config)
    assert plain.largest_batch == plain.batch_cap == 10
    assert "largest batch 10 or more" in plain.verdict
    assert expandable.peak_reserved_bytes != plain.peak_reserved_bytes
