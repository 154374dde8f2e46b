"""Predictions for the tests of what shows them: one workload on three GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tests.prediction.builder import training

from ebbtide.gpus import find
from ebbtide.prediction.process import Device
from ebbtide.prediction.result import Prediction
from ebbtide.prediction.sweep import predict_batches
from ebbtide.trace.model import Guess
from ebbtide.units import MiB, Range

GUESS = Guess(
    kind="item",
    text="What .item() returned was taken to be 1.0; what follows from it is a guess.",
    count=4,
)
WORKLOAD = {"layers": 24, "width": 6144, "workspace": (0, 40 * MiB, 150 * MiB)}


def device(name: str, context: Range | None = None) -> Device:
    """A GPU of the catalogue with a context that no later sighting changes."""
    fixed = context or Range(200 * MiB, 300 * MiB, 450 * MiB)
    return Device(gpu=find(name), context_bytes=fixed)


# Kept apart from the catalogue, so that a better figure there changes no picture:
# usable bytes, bandwidth in bytes/s, bfloat16 operations/s.
FIGURES = {
    "t4": (15_637_086_208, 320e9, 8.1e12),
    "l4": (23_795_335_168, 300e9, 121e12),
    "a100-40gb": (42_297_786_368, 1555e9, 312e12),
}


def steady(name: str) -> Device:
    """One of `FIGURES` as a GPU."""
    usable, bandwidth, rate = FIGURES[name]
    gpu = replace(
        find(name), usable_bytes=usable, bandwidth_bytes_s=bandwidth, flops={"bfloat16": rate}
    )
    return replace(device(name), gpu=gpu)


@cache
def three() -> tuple[Prediction, ...]:
    """On a T4, where it does not fit, an L4 and an A100."""
    made = predict_batches(
        {batch: training(batch, **WORKLOAD) for batch in (16, 32, 64)},
        32,
        [steady(name) for name in FIGURES],
    )
    return tuple(replace(each, guesses=(GUESS, *each.guesses), seconds=1.5) for each in made)


def one() -> Prediction:
    """On an L4, where it fits."""
    return three()[1]
