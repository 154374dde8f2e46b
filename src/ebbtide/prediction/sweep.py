"""One workload, several batch sizes, several GPUs: the whole answer that a command gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from ebbtide.prediction.build import EVERYTHING, FIGURES, Wanted, predict_trace
from ebbtide.prediction.curve import BATCH_CAP, BATCHES, best_batch, curve, largest_batch
from ebbtide.prediction.family import DoNotAlignError, Family, family
from ebbtide.prediction.parts import CurvePoint
from ebbtide.prediction.process import Device, Replays
from ebbtide.prediction.result import Prediction
from ebbtide.trace.model import Guess, Trace
from ebbtide.vgpu.allocator import AllocatorConfig


def predict_batches(
    traces: Mapping[int, Trace],
    batch: int,
    devices: Sequence[Device],
    *,
    batches: Sequence[int] = BATCHES,
    config: AllocatorConfig | None = None,
    cap: int = BATCH_CAP,
    wanted: Wanted = EVERYTHING,
) -> tuple[Prediction, ...]:
    """Predictions for `batch` on each of `devices`, with the curve over `batches`.

    Where the traces do different things at different batch sizes there is no largest
    batch, the curve has the traced sizes alone, and a guess says so.

    Args:
        traces: the workload by batch size: two or three for a curve, one for none.
        batch: the size to answer for, one of them.
        devices: GPUs of the class on which was traced.
        batches: the curve's batch sizes.
        config: the settings of ``PYTORCH_ALLOC_CONF``.
        cap: where the search for the largest batch stops.
        wanted: what the predictions are to contain.
    """
    trace = traces[batch]
    replays = Replays(trace, config)
    alone = [
        predict_trace(trace, device, batch=batch, replays=replays, wanted=wanted)
        for device in devices
    ]
    if len(traces) == 1:
        return tuple(alone)
    sizes = sorted({*batches, batch})
    try:
        grown, why = _family(traces, batch)
    except DoNotAlignError as error:
        return tuple(
            _with_traced(each, traces, device, config, str(error))
            for each, device in zip(alone, devices, strict=True)
        )
    if len(grown.trace.event_kind) != len(trace.event_kind) or why is not None:
        replays = Replays(grown.trace, config)  # its events are others than those of `trace`
    if why is not None:
        alone = [replace(each, guesses=(*each.guesses, why)) for each in alone]
        if batch not in grown.batches:
            sizes = [size for size in sizes if size >= grown.batches[0] and size != batch]
    return tuple(
        _with_curve(each, grown, device, sizes, replays, cap)
        for each, device in zip(alone, devices, strict=True)
    )


def _family(traces: Mapping[int, Trace], batch: int) -> tuple[Family, Guess | None]:
    """The family of all traces, or of two where the third stands apart.

    Dimensions of 1 take other kernels and other views, and so may a large batch.
    """
    try:
        return family(traces), None
    except DoNotAlignError as error:
        why = error
    pairs = list(combinations(sorted(traces), 2)) if len(traces) > 2 else []
    for pair in sorted(pairs, key=lambda pair: batch not in pair):
        try:
            grown = family({size: traces[size] for size in pair})
        except DoNotAlignError:
            continue
        text = f"The curve is through batch {pair[0]} and {pair[1]}. {why}"
        return grown, Guess(kind="curve-apart", text=text, count=1)
    raise why


def _with_curve(
    alone: Prediction,
    grown: Family,
    device: Device,
    batches: Sequence[int],
    replays: Replays,
    cap: int,
) -> Prediction:
    points = curve(grown, device, batches=batches, replays=replays)
    if alone.batch is not None and alone.batch not in batches:
        points = tuple(sorted((_point(alone, alone.batch), *points), key=lambda p: p.batch))
    largest = largest_batch(grown, device, points=points, cap=cap, replays=replays)
    if largest and largest not in {point.batch for point in points}:
        found = curve(grown, device, batches=[largest], replays=replays)
        points = tuple(sorted((*points, *found), key=lambda p: p.batch))
    return replace(
        alone,
        curve=points,
        largest_batch=largest,
        batch_cap=cap,
        best_batch=best_batch(points),
        guesses=(*alone.guesses, *grown.guesses()),
    )


def _with_traced(
    alone: Prediction,
    traces: Mapping[int, Trace],
    device: Device,
    config: AllocatorConfig | None,
    why: str,
) -> Prediction:
    """The curve of what was traced, without a largest batch."""
    points = []
    for batch in sorted(traces):
        each = predict_trace(
            traces[batch],
            device,
            batch=batch,
            replays=Replays(traces[batch], config),
            wanted=FIGURES,
        )
        points.append(_point(each, batch))
    return replace(
        alone,
        curve=tuple(points),
        best_batch=best_batch(points),
        guesses=(*alone.guesses, Guess(kind="curve-traced", text=why, count=1)),
    )


def _point(prediction: Prediction, batch: int) -> CurvePoint:
    return CurvePoint(
        batch=batch,
        allocated_bytes=prediction.peak_allocated_bytes,
        reserved_bytes=prediction.peak_reserved_bytes,
        process_bytes=prediction.process_bytes,
        fits=prediction.fits,
        step_s=prediction.step_s,
        samples_per_s=prediction.samples_per_s,
    )
