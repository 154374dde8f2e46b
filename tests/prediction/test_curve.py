from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prediction.builder import training
from tests.prediction.samples import device

from ebbtide.gpus import find
from ebbtide.prediction.curve import (
    BATCH_CAP,
    BATCHES,
    _search,
    best_batch,
    curve,
    largest_batch,
    telling,
)
from ebbtide.prediction.family import Family, family
from ebbtide.prediction.parts import CurvePoint
from ebbtide.prediction.process import Device, Replays
from ebbtide.prediction.replaying import replay
from ebbtide.units import GiB, MiB, Range


def roomy(room: int) -> Device:
    """A GPU with `room` bytes for the allocator."""
    gpu = replace(find("l4"), usable_bytes=room + MiB)
    return Device(gpu=gpu, context_bytes=Range.exact(MiB))


def workload(**shape: int) -> Family:
    return family({batch: training(batch, **shape) for batch in (2, 4, 8)})


def test_reserved_is_that_of_each_batch_traced_by_itself() -> None:
    points = curve(workload(), device("l4"), batches=(1, 3, 8, 50, 200))
    for point in points:
        trace = training(point.batch)
        alone = replay(trace, trace.allocs.likely_bytes)
        assert point.reserved_bytes == alone.peak_reserved_bytes
        assert point.allocated_bytes == alone.peak_allocated_bytes


def test_twelve_batches_by_default() -> None:
    points = curve(workload(), device("l4"))
    assert tuple(point.batch for point in points) == BATCHES
    assert len(BATCHES) == 12
    assert {16, 32, 64, 128} <= set(BATCHES)
    allocated = [point.allocated_bytes for point in points]
    assert allocated == sorted(allocated)


def test_time_stands_beside_each_batch() -> None:
    for point in curve(workload(), device("l4")):
        assert point.step_s is not None
        assert point.samples_per_s == pytest.approx(point.batch / point.step_s)


def test_the_curve_ends_where_counting_does() -> None:
    points = curve(workload(), device("l4"), batches=(4, 1 << 60))
    assert [point.batch for point in points] == [4]


@settings(max_examples=25)
@given(st.integers(60, 2000), st.booleans())
def test_the_largest_batch_fits_and_the_next_does_not(room_mib: int, with_curve: bool) -> None:
    made, gpu = workload(), roomy(room_mib * MiB)
    points = curve(made, gpu) if with_curve else ()
    largest = largest_batch(made, gpu, points=points)
    for batch, fits in ((largest, True), (largest + 1, False)):
        if batch:
            trace = training(batch)
            run = replay(trace, trace.allocs.likely_bytes, limit=gpu.limit)
            assert (run.out_of_memory is None) == fits


@settings(max_examples=20)
@given(st.lists(st.integers(60, 2000), min_size=2, max_size=4, unique=True))
def test_more_memory_never_means_a_smaller_largest_batch(rooms: list[int]) -> None:
    made = workload()
    replays = Replays(made.trace)
    found = [largest_batch(made, roomy(room * MiB), replays=replays) for room in sorted(rooms)]
    assert found == sorted(found)


def test_nothing_fits() -> None:
    assert largest_batch(workload(), roomy(MiB)) == 0


def test_the_search_stops_at_its_cap() -> None:
    tiny = family({batch: training(batch, layers=1, width=8) for batch in (2, 4)})
    assert largest_batch(tiny, roomy(20 * GiB), cap=1000) == 1000
    # P13: never 67 million.
    assert largest_batch(tiny, roomy(2000 * GiB)) == BATCH_CAP == 65_535


def test_the_curve_spares_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    made, gpu = workload(width=2048), roomy(3 * GiB)
    points = curve(made, gpu)
    counted: list[int] = []
    limited = Replays.limited

    def count(self: Replays, *args: object) -> object:
        counted.append(1)
        return limited(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Replays, "limited", count)
    largest = largest_batch(made, gpu, points=points)
    assert largest > max(point.batch for point in points)
    assert len(counted) <= 12


@given(
    st.integers(0, 500),
    st.integers(0, 500),
    st.one_of(st.none(), st.integers(-10, 1000)),
)
def test_search_finds_the_edge_from_any_guess(edge: int, above: int, guess: int | None) -> None:
    probed: list[int] = []

    def fits(batch: int) -> bool:
        probed.append(batch)
        return batch <= edge

    assert _search(fits, 0, edge + above, guess) == edge
    assert len(probed) == len(set(probed))
    assert all(0 < batch <= edge + above for batch in probed)


def test_a_good_guess_costs_few_probes() -> None:
    probed: list[int] = []

    def fits(batch: int) -> bool:
        probed.append(batch)
        return batch <= 30_000

    assert _search(fits, 256, 65_535, 30_001) == 30_000
    assert len(probed) <= 11


def point(batch: int, speed: float | None, fits: bool = True) -> CurvePoint:
    return CurvePoint(
        batch=batch,
        allocated_bytes=1,
        reserved_bytes=2,
        process_bytes=Range.exact(3),
        fits=fits,
        step_s=None if speed is None else batch / speed,
        samples_per_s=speed,
    )


def test_best_batch_is_the_knee() -> None:
    points = [point(1, 10.0), point(8, 80.0), point(16, 96.0), point(32, 100.0)]
    assert best_batch(points) == 16
    assert best_batch(points, share=0.5) == 8
    assert best_batch(points, share=1.0) == 32


def test_best_batch_fits() -> None:
    points = [point(1, 10.0), point(2, 20.0), point(4, 40.0, fits=False)]
    assert best_batch(points) == 2


def test_no_best_batch() -> None:
    assert best_batch([]) is None
    assert best_batch([point(1, 10.0, fits=False)]) is None
    assert best_batch([point(1, None)]) is None


@pytest.mark.parametrize(("over", "told"), [(0, 0), (4, 4), (5, 2), (9, 2)])
def test_of_many_that_do_not_fit_two_are_told(over: int, told: int) -> None:
    points = [point(batch, 1.0, fits=batch <= 3) for batch in range(1, 4 + over)]
    assert [each.batch for each in telling(points)] == list(range(1, 4 + told))
