"""Predict a target in a process of its own: trace it on each class of GPU, then replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ebbtide.errors import UsageError
from ebbtide.gpus import Gpu, find
from ebbtide.prediction.curve import BATCHES
from ebbtide.prediction.process import Device
from ebbtide.prediction.result import Prediction
from ebbtide.prediction.sequence import with_largest_seq
from ebbtide.prediction.sweep import predict_batches
from ebbtide.trace.check import check
from ebbtide.trace.file import load_trace
from ebbtide.trace.model import Guess, Trace
from ebbtide.workloads.request import Request
from ebbtide.workloads.runner import Traces, run_request

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is to be predicted.

    Attributes:
        request: the workload; its `gpus` are filled in here.
        gpus: the GPUs to answer for.
        batches: batch sizes of the curve.
    """

    request: Request
    gpus: tuple[Gpu, ...]
    batches: tuple[int, ...] = BATCHES


def predict_target(
    question: Question, progress: Progress | None = None
) -> tuple[tuple[Prediction, ...], tuple[Trace, ...]]:
    """Predictions in the order of the question's GPUs, and the trace that each rests on.

    GPUs of one compute capability choose the same kernels and share a trace.

    Raises:
        UsageError: a GPU is no CUDA device.
        EbbtideError: the workload failed.
    """
    started = time.perf_counter()
    for gpu in question.gpus:
        if gpu.compute_capability is None:
            raise UsageError(
                f"{gpu.name} is in the catalogue for its memory figures only: what its kernels "
                "need is not known. Choose an NVIDIA GPU; `ebbtide gpus` lists them."
            )
    if question.request.kind == "trace":
        shared = [(_saved(question.request), list(question.gpus))]
    else:
        shared = _traced(question, progress)
        if progress is not None:
            progress({"event": "phase", "text": "replaying"})
    found: dict[str, tuple[Prediction, Trace]] = {}
    for traces, gpus in shared:
        for each in answer(traces, gpus, question.batches):
            found[each.gpu] = (each, traces.answer)
    seconds = time.perf_counter() - started
    chosen = [found[gpu.key] for gpu in question.gpus]
    return (
        tuple(replace(each, seconds=seconds) for each, _ in chosen),
        tuple(trace for _, trace in chosen),
    )


def _traced(question: Question, progress: Progress | None) -> list[tuple[Traces, list[Gpu]]]:
    """Traces, each with the GPUs that it is good for."""
    classes: dict[tuple[int, int] | None, list[Gpu]] = {}
    # The smallest first: what fits there does the same on a larger one.
    for gpu in sorted(question.gpus, key=lambda gpu: gpu.usable_bytes):
        classes.setdefault(gpu.compute_capability, []).append(gpu)
    groups = list(classes.values())
    first = tuple(group[0].key for group in groups)
    traces = run_request(replace(question.request, gpus=first), progress)
    # A script that caught an out-of-memory error does something else on a larger GPU.
    alone = [
        gpu
        for group in groups
        if traces[group[0].key].answer.meta.get("caught_out_of_memory")
        for gpu in group[1:]
    ]
    if alone:
        request = replace(question.request, gpus=tuple(gpu.key for gpu in alone))
        traces |= run_request(request, progress)
    shared = [[gpu for gpu in group if gpu not in alone] for group in groups]
    return [(traces[group[0].key], group) for group in [*shared, *([gpu] for gpu in alone)]]


def _saved(request: Request) -> Traces:
    why = "a saved trace is at one batch size" if request.curve else ""
    trace = load_trace(request.target)
    check(trace, request.target)
    return Traces(answer=trace, no_curve=why)


def answer(
    traces: Traces, gpus: Sequence[Gpu], batches: Sequence[int] = BATCHES
) -> tuple[Prediction, ...]:
    """Predictions on GPUs of one class, with curves as far as there are traces for them."""
    first = traces.answer
    devices = [Device.of(gpu, first.torch_version) for gpu in gpus]
    batch = first.meta.get("batch")
    by_batch = {batch or 1: first}
    by_batch |= {trace.meta["batch"]: trace for trace in traces.batches}
    guesses = []
    if traces.no_curve and not traces.batches:
        guesses.append(Guess(kind="no-curve", text=_no_curve(traces.no_curve), count=1))
    if len(by_batch) > 1 and all(_same(first, other) for other in traces.batches):
        by_batch = {batch or 1: first}
        text = "nothing that the workload does depends on its batch size"
        guesses.append(Guess(kind="no-curve", text=_no_curve(text), count=1))
    found = predict_batches(by_batch, batch or 1, devices, batches=batches)
    found = with_largest_seq(found, first, traces.seqs, devices)
    if traces.no_seqs:
        text = f"The largest sequence could not be found: {traces.no_seqs}"
        guesses.append(Guess(kind="no-seq", text=text, count=1))
    return tuple(
        _finished(each, first, batch, (*guesses, *_class_guess(first, gpu)))
        for each, gpu in zip(found, gpus, strict=True)
    )


def _no_curve(why: str) -> str:
    return f"There is no curve over batch sizes: {why}"


def _same(one: Trace, other: Trace) -> bool:
    return np.array_equal(one.allocs.likely_bytes, other.allocs.likely_bytes)


def _class_guess(trace: Trace, gpu: Gpu) -> tuple[Guess, ...]:
    traced = find(trace.gpu)
    if traced.compute_capability == gpu.compute_capability:
        return ()
    text = (
        f"The trace is of {traced.name} (compute capability {_dotted(traced)}); the "
        f"{gpu.name} ({_dotted(gpu)}) may choose other kernels. Trace it there to be sure."
    )
    return (Guess(kind="other-class", text=text, count=1),)


def _dotted(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.compute_capability or ("none",)))


def _finished(
    each: Prediction, trace: Trace, batch: int | None, guesses: Sequence[Guess]
) -> Prediction:
    """With what only the workload knows: its batch, and how many of it make a step."""
    times = trace.meta.get("accumulated", 1) if batch is not None else None

    def speed(samples_per_s: float | None) -> float | None:
        # Of a batch that nobody knows there would be steps a second.
        return None if samples_per_s is None or times is None else samples_per_s * times

    return replace(
        each,
        batch=batch,
        assumed=str(trace.meta.get("assumed", "")),
        samples_per_s=speed(each.samples_per_s),
        curve=tuple(
            replace(point, samples_per_s=speed(point.samples_per_s)) for point in each.curve
        ),
        guesses=(*each.guesses, *guesses),
    )
