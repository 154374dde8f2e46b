"""Predict a target in a process of its own: trace it on each class of GPU, then replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.errors import UsageError
from ebbtide.gpus import Gpu
from ebbtide.prediction.curve import BATCHES
from ebbtide.prediction.process import Device
from ebbtide.prediction.result import Prediction
from ebbtide.prediction.sweep import predict_batches
from ebbtide.trace.model import Guess, Trace
from ebbtide.workloads.request import Request
from ebbtide.workloads.runner import run_request

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
    """Predictions in the order of the question's GPUs, and the traces they rest on.

    GPUs of one compute capability choose the same kernels and share a trace.

    Raises:
        UsageError: a GPU is no CUDA device.
        EbbtideError: the workload failed.
    """
    started = time.perf_counter()
    classes: dict[tuple[int, int], list[Gpu]] = {}
    for gpu in question.gpus:
        if gpu.compute_capability is None:
            raise UsageError(
                f"{gpu.name} is in the catalogue for its memory figures only: what its kernels "
                "need is not known. Choose an NVIDIA GPU; `ebbtide gpus` lists them."
            )
        classes.setdefault(gpu.compute_capability, []).append(gpu)
    groups = [sorted(group, key=lambda gpu: gpu.usable_bytes) for group in classes.values()]
    request = replace(question.request, gpus=tuple(group[0].key for group in groups))
    traced = run_request(request, progress)
    # A script that caught an out-of-memory error does something else on a larger GPU.
    alone = [
        gpu
        for group in groups
        if traced.traces[group[0].key][0].meta.get("caught_out_of_memory")
        for gpu in group[1:]
    ]
    if alone:
        more = run_request(replace(request, gpus=tuple(gpu.key for gpu in alone)), progress)
        traced = traced.joined(more)
        groups = [[gpu for gpu in group if gpu not in alone] for group in groups]
        groups += [[gpu] for gpu in alone]
    found: dict[str, Prediction] = {}
    for group in groups:
        first = group[0].key
        for each in answer(traced.traces[first], group, question.batches):
            if first in traced.no_curve:
                each = _without_curve(each, traced.no_curve[first])
            found[each.gpu] = each
    seconds = time.perf_counter() - started
    return (
        tuple(replace(found[gpu.key], seconds=seconds) for gpu in question.gpus),
        tuple(traced.traces[key][0] for key in request.gpus),
    )


def answer(
    traces: list[Trace], gpus: Sequence[Gpu], batches: Sequence[int]
) -> tuple[Prediction, ...]:
    """Predictions on GPUs of one class from the trace asked for and, for a curve, another."""
    first = traces[0]
    devices = [Device.of(gpu, first.torch_version) for gpu in gpus]
    batch = first.meta.get("batch")
    by_batch = {trace.meta.get("batch") or 1: trace for trace in traces}
    found = predict_batches(by_batch, batch or 1, devices, batches=batches)
    if batch is None:  # nobody knows: samples a second would be steps a second
        found = tuple(replace(each, batch=None, samples_per_s=None) for each in found)
    return found


def _without_curve(prediction: Prediction, why: str) -> Prediction:
    guess = Guess(kind="no-curve", text=f"no other batch size could be traced: {why}", count=1)
    return replace(prediction, guesses=(*prediction.guesses, guess))
