"""Ranges and bends along the curve: each point is what its own trace would give."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prediction.builder import Builder, training
from tests.prediction.samples import device
from tests.prediction.test_curve import roomy

from ebbtide.prediction.build import FIGURES, predict_trace
from ebbtide.prediction.curve import curve, largest_batch
from ebbtide.prediction.family import family
from ebbtide.prediction.replaying import replay
from ebbtide.trace.model import Category, Trace
from ebbtide.units import KiB, MiB


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(0, 64), st.integers(0, 256), st.integers(1, 100))
def test_each_point_is_the_prediction_for_its_batch(
    layers: int, likely: int, more: int, batch: int
) -> None:
    shape = {"layers": layers, "workspace": (0, likely * MiB, (likely + more) * MiB)}
    made = family({b: training(b, **shape) for b in (4, 8, 16)})  # type: ignore[arg-type]
    (point,) = curve(made, device("l4"), batches=(batch,))
    alone = predict_trace(
        training(batch, **shape),  # type: ignore[arg-type]
        device("l4"),
        batch=batch,
        wanted=FIGURES,
    )
    assert point.process_bytes == alone.process_bytes
    assert point.allocated_bytes == alone.peak_allocated_bytes
    assert point.fits == alone.fits


def contrastive(batch: int) -> Trace:
    """Two towers whose outputs are compared each with each: memory is quadratic."""
    b = Builder()
    b.phase("forward", 1)
    for tower in ("image", "text"):
        b.op("aten::mm", tower)
        b.alloc(batch * 256 * KiB)
    b.op("aten::mm", "logits")
    b.alloc(4 * batch * batch)
    return b.build()


def test_a_quadratic_loss_limits_the_batch() -> None:
    made = family({b: contrastive(b) for b in (64, 128, 256)})
    gpu = roomy(8 * 1024 * MiB)
    largest = largest_batch(made, gpu)
    for batch, fits in ((largest, True), (largest + 1, False)):
        trace = contrastive(batch)
        run = replay(trace, trace.allocs.likely_bytes, limit=gpu.limit)
        assert (run.out_of_memory is None) == fits
    assert [guess.kind for guess in made.guesses()] == ["curve-bent"]


def test_two_traces_overlook_it_and_say_so() -> None:
    made = family({b: contrastive(b) for b in (64, 128)})
    assert [guess.kind for guess in made.guesses()] == ["curve-unchecked"]


def bucketed(batch: int) -> Trace:
    """A mask of one bit an element, and a buffer for each started 32 samples."""
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::native_dropout")
    b.alloc(-(-batch * 1000 // 8))
    b.alloc(-(-batch // 32) * MiB, Category.TEMPORARY)
    return b.build()


def test_steps_are_reproduced_where_they_were_traced_and_near_elsewhere() -> None:
    batches = (16, 32, 64)
    made = family({b: bucketed(b) for b in batches})
    for batch in batches:
        sizes = made.sizes(batch)
        assert sizes is not None
        assert sizes.likely.tolist() == bucketed(batch).allocs.likely_bytes.tolist()
    far = made.sizes(320)
    assert far is not None
    assert far.likely[0] == bucketed(320).allocs.likely_bytes[0]
    assert abs(int(far.likely[1]) - 10 * MiB) <= MiB
