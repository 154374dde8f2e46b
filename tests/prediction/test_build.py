from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prediction.builder import Builder, training
from tests.prediction.samples import device
from tests.prediction.test_alive import MOVES, random_trace
from tests.prediction.test_process import tight
from tests.prediction.test_replaying import scattered

from ebbtide.gpus import find
from ebbtide.prediction.build import FIGURES, predict_trace
from ebbtide.prediction.process import Device
from ebbtide.prediction.replaying import replay
from ebbtide.trace.model import Category, Guess
from ebbtide.units import MiB, Range


def test_known_bytes_from_end_to_end() -> None:
    weight, hidden = 4 * 1024 * 1024, 4 * 64 * 8 * 1024
    made = predict_trace(training(8, layers=3), device("l4", Range(1, 2, 3)), batch=8)
    # Optimizer: parameters, two states, scratch and gradients of each layer, and the batch.
    assert made.peak_allocated_bytes == 15 * weight + hidden
    assert (made.peak.phase, made.peak.step) == ("optimizer", 1)
    assert made.peak.op == "aten::_foreach_addcdiv_"
    assert made.peak.line == "train.py:10"
    assert made.ledger["optimizer state"] == 6 * weight
    assert made.ledger["gradients"] == made.ledger["parameters"] == 3 * weight
    assert made.ledger["CUDA context"] == 2
    assert made.batch == 8
    assert made.fits
    assert made.torch_version == "2.13.0"


@settings(max_examples=50)
@given(MOVES, st.integers(0, 1 << 40))
def test_the_ledger_adds_up_whatever_happens(
    moves: list[tuple[int, int, int]], context: int
) -> None:
    trace = random_trace(moves)
    for gpu in (device("l4", Range.exact(context)), device("b200", Range.exact(context))):
        made = predict_trace(trace, gpu)
        assert sum(made.ledger.values()) == made.process_bytes.likely
        assert min(made.ledger.values()) >= 0
        alone = replay(trace, trace.allocs.likely_bytes)
        assert made.peak_allocated_bytes <= alone.peak_allocated_bytes
        assert made.fits or made.peak_reserved_bytes == alone.peak_reserved_bytes
        assert not made.fits or made.process_bytes.likely <= made.usable_bytes


def test_workspaces_widen_the_process_figure() -> None:
    made = predict_trace(training(8, workspace=(0, 64 * MiB, 256 * MiB)), device("l4"))
    assert made.reserved_bytes.low < made.peak_reserved_bytes < made.reserved_bytes.high
    assert made.reserved_bytes.likely == made.peak_reserved_bytes
    assert made.process_bytes == made.reserved_bytes + made.context_bytes


def test_the_ledger_after_cached_blocks_were_given_back() -> None:
    made = predict_trace(scattered().build(), tight(80 * MiB))
    assert (made.fits, made.retries) == (True, 1)
    assert sum(made.ledger.values()) == made.process_bytes.likely
    assert made.peak_reserved_bytes == 64 * MiB


def test_fragmentation_and_largest_hole_at_the_peak() -> None:
    # P37: memory is reserved in pieces, none of which serves the last request.
    made = predict_trace(scattered().build(), device("l4"))
    assert made.ledger["cached/fragmentation"] == 64 * MiB
    assert made.largest_hole_bytes == 16 * MiB
    assert made.peak_reserved_bytes == 104 * MiB


def test_the_two_peaks_may_be_at_different_moments() -> None:
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::first")
    early = [b.alloc(16 * MiB) for _ in range(4)]
    b.free(*early[:3])
    b.phase("backward", 1)
    b.op("aten::second")
    b.alloc(40 * MiB)
    made = predict_trace(b.build(), device("l4"))
    assert made.allocated_peak.op == "aten::first"
    assert made.peak.op == "aten::second"
    assert made.peak_allocated_bytes == 64 * MiB
    assert made.peak_reserved_bytes == 104 * MiB


def test_figures_only() -> None:
    made = predict_trace(training(2), device("l4"), wanted=FIGURES)
    assert (made.timeline, made.alive, made.largest_hole_bytes) == (None, (), None)
    assert sum(made.ledger.values()) == made.process_bytes.likely


def test_steps_are_replayed_as_they_stand() -> None:
    # P11: what the first step leaves behind is there in the second.
    b = Builder()
    for step, size in ((1, 30 * MiB), (2, 50 * MiB)):
        b.phase("forward", step)
        b.op("aten::mm")
        b.free(b.alloc(size))
    made = predict_trace(b.build(), device("l4"))
    assert made.peak_reserved_bytes == 80 * MiB
    assert (made.peak.phase, made.peak.step) == ("forward", 2)


def test_samples_a_second() -> None:
    made = predict_trace(training(8), device("l4"), batch=8)
    assert made.step_s is not None
    assert made.samples_per_s == 8 / made.step_s
    unknown = predict_trace(training(8), device("l4"))
    assert unknown.samples_per_s is None
    assert unknown.step_s == made.step_s


def test_guesses_of_the_trace_are_kept() -> None:
    guess = Guess(kind="nonzero", text="All were taken to be nonzero.", count=2)
    made = predict_trace(replace(training(2), guesses=(guess,)), device("l4"))
    assert made.guesses == (guess,)


def test_an_empty_trace_is_its_context() -> None:
    made = predict_trace(Builder().build(), device("l4", Range.exact(7)))
    assert made.process_bytes == Range.exact(7)
    assert made.ledger["CUDA context"] == 7
    assert made.alive == ()
    assert made.step_s is None


def test_a_kv_cache_is_a_part_of_its_own() -> None:
    # P1
    b = Builder()
    b.phase("inference", 1)
    b.op("aten::empty", "model.layers.0.self_attn")
    b.alloc(3 * MiB, Category.KV_CACHE)
    made = predict_trace(b.build(), Device.of(find("l4"), "2.13.0"))
    assert made.ledger["KV cache"] == 3 * MiB
