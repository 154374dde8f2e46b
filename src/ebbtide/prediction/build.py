"""From a trace to a prediction for one GPU."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ebbtide.prediction.alive import alive_at
from ebbtide.prediction.family import Sizes
from ebbtide.prediction.ledger import ledger_at
from ebbtide.prediction.process import Device, Outcome, Replays
from ebbtide.prediction.replaying import History, history, largest_hole
from ebbtide.prediction.result import Prediction
from ebbtide.prediction.steptime import step_seconds
from ebbtide.prediction.timeline import moment, timeline
from ebbtide.prediction.words import gpu_label
from ebbtide.trace.model import Ints, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a prediction is to contain beyond its figures.

    Attributes:
        timeline: memory over the events, for the chart.
        alive: the table at the peak.
        hole: the largest hole at the peak; costs a replay up to there.
    """

    timeline: bool = True
    alive: bool = True
    hole: bool = True


EVERYTHING = Wanted()
FIGURES = Wanted(timeline=False, alive=False, hole=False)


def predict_trace(
    trace: Trace,
    device: Device,
    *,
    batch: int | None = None,
    replays: Replays | None = None,
    wanted: Wanted = EVERYTHING,
) -> Prediction:
    """What the recorded workload needs on `device`.

    The events are replayed as they stand: warm-up, first step and steady steps in
    order, so that growth from one step to the next shows.

    Args:
        trace: one workload on one class of GPU.
        device: the GPU.
        batch: samples in a step, None where not known.
        replays: replays of `trace` that several GPUs share; its allocator settings hold.
        wanted: what the prediction is to contain.
    """
    started = time.perf_counter()
    replays = replays if replays is not None else Replays(trace)
    allocs = trace.allocs
    sizes = Sizes(likely=allocs.likely_bytes, low=allocs.low_bytes, high=allocs.high_bytes)
    replays.history(sizes.likely)  # looked at below, and its figures used by the outcome
    outcome = replays.outcome(sizes, device)
    if outcome.limited:
        run = history(trace, sizes.likely, limit=device.limit, config=replays.config)
    else:
        run = replays.history(sizes.likely)
    event = run.ledger_event
    step_s = step_seconds(trace, device.gpu)
    hole = largest_hole(trace, sizes.likely, event, replays.config) if wanted.hole else None
    return Prediction(
        gpu=device.gpu.key,
        gpu_label=gpu_label(device.gpu.key),
        usable_bytes=device.usable_bytes,
        fits=outcome.fits,
        peak_allocated_bytes=outcome.likely.peak_allocated_bytes,
        peak_reserved_bytes=outcome.likely.peak_reserved_bytes,
        process_bytes=outcome.process_bytes,
        reserved_bytes=outcome.reserved_bytes,
        context_bytes=device.context_bytes,
        ledger=_ledger(trace, sizes.likely, run, event, device, outcome),
        peak=moment(trace, event),
        allocated_peak=moment(trace, run.allocated_event),
        alive=alive_at(trace, event, sizes.likely) if wanted.alive else (),
        largest_hole_bytes=hole,
        batch=batch,
        step_s=step_s,
        samples_per_s=batch / step_s if batch and step_s else None,
        timeline=timeline(trace, sizes.likely, run.allocated, run.reserved, keep=(event,))
        if wanted.timeline
        else None,
        guesses=trace.guesses,
        retries=outcome.likely.retries,
        torch_version=trace.torch_version,
        seconds=time.perf_counter() - started,
    )


def _ledger(
    trace: Trace, sizes: Ints, run: History, event: int, device: Device, outcome: Outcome
) -> dict[str, int]:
    return ledger_at(
        trace,
        event,
        sizes,
        allocated_bytes=int(run.allocated[event]) if len(run.allocated) else 0,
        reserved_bytes=outcome.likely.peak_reserved_bytes,
        context_bytes=device.context_bytes.likely,
    )
