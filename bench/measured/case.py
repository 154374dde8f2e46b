"""A measured row with the workload that rebuilds it, or the reason why none does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .meter import Meter
from .rows import Row, gpu_name, torch_version

Workload = Callable[[Any, Meter], None]
"""Takes a `torch.device` and a meter."""

PEAK = "peak"
# Notes that a workload makes of what is reserved.
MODEL, BATCH = "model on the device", "first batch on the device"

# What the process holds beside the caching allocator, as far as the row counts it.
NO_CONTEXT = "none"
CATALOGUE = "catalogue"
GROWTH = "what the context grows by"
LOADED = "what came after the model was on the device"
STATED = "stated by the row's source"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A row that can be rebuilt.

    Attributes:
        row: what was measured.
        group: rows that are judged together.
        run: the workload.
        draws: where chance decides something that the row does not say, the workload for
            each outcome that was drawn, and how often; then `run` is the first of them.
        moment: `PEAK`, or the name of the note at whose moment the row's figure was taken.
        gpu: the catalogue's name.
        torch: the version whose rules apply.
        context: `NO_CONTEXT`, `CATALOGUE`, `GROWTH`, `LOADED` or `STATED`.
        environment: environment variables that the source sets and torch reads.
        assumption: what the row does not say and the workload supposes.
        shared: a name that rows with the very same run have in common; empty for none.
    """

    row: Row
    group: str
    run: Workload
    draws: tuple[tuple[Workload, int], ...] = ()
    moment: str = PEAK
    gpu: str
    torch: str
    context: str = NO_CONTEXT
    environment: tuple[tuple[str, str], ...] = ()
    assumption: str = ""
    shared: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbuilt:
    """A row without a workload."""

    row: Row
    group: str
    reason: str


Maker = Callable[[Row], Case | Unbuilt]
_MAKERS: list[tuple[re.Pattern[str], Maker]] = []


def makes(pattern: str) -> Callable[[Maker], Maker]:
    """Register a function for the rows whose id matches `pattern` at its start."""

    def register(maker: Maker) -> Maker:
        _MAKERS.append((re.compile(pattern), maker))
        return maker

    return register


def case_of(row: Row) -> Case | Unbuilt:
    """The case of `row`; a row that no maker knows is unbuilt and says so."""
    for pattern, maker in _MAKERS:
        if pattern.match(row.id):
            return maker(row)
    return Unbuilt(row=row, group="other", reason="no workload has been written for this source")


def place(row: Row) -> dict[str, str]:
    """`gpu` and `torch` of a `Case`."""
    return {"gpu": gpu_name(row), "torch": torch_version(row)}
