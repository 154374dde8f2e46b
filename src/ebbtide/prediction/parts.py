"""The pieces a prediction is made of. Plain data: no torch, no trace, no allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.trace.model import Category
from ebbtide.units import Range

PARTS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "inputs",
    "activations",
    "KV cache",
    "temporaries",
    "workspaces",
    "other",
    "rounding",
    "cached/fragmentation",
    "CUDA context",
)
"""The lines of a ledger, in order; each ledger has all of them, zero or not."""


CATEGORY_PARTS = {
    Category.PARAMETER: "parameters",
    Category.BUFFER: "buffers",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.INPUT: "inputs",
    Category.ACTIVATION: "activations",
    Category.KV_CACHE: "KV cache",
    Category.TEMPORARY: "temporaries",
    Category.WORKSPACE: "workspaces",
    Category.OTHER: "other",
}
"""The line of the ledger that each category counts in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The moment of a peak.

    Attributes:
        phase: ``"forward"``, ``"backward"``, ``"optimizer"``, ...; see `trace.model.Phase`.
        step: training step, or forward number of an inference.
        op: the operation that was running, ``""`` where there was none.
        module: path of the module that ran it, ``""`` outside modules.
        line: source line, ``""`` where not known.
        event: index of the trace's event.
    """

    phase: str
    step: int
    op: str
    module: str
    line: str
    event: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Alive:
    """What was alive at the peak: allocations of one category, module, operation and line.

    `bytes` is as requested, before the allocator rounds; `count` is how many allocations.
    """

    category: str
    module: str
    op: str
    line: str
    bytes: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """One batch size on the curve.

    Attributes:
        batch: samples in a step.
        allocated_bytes, reserved_bytes: peaks of torch's two figures.
        process_bytes: what nvidia-smi would show.
        fits: whether it runs on the GPU, by the likely figure.
        step_s: predicted seconds of a steady step, None where the trace has no cost.
        samples_per_s: predicted, from `step_s`.
    """

    batch: int
    allocated_bytes: int
    reserved_bytes: int
    process_bytes: Range
    fits: bool
    step_s: float | None
    samples_per_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Memory by part over the events of the trace, thinned out with its peaks kept.

    Attributes:
        event: index of the trace's event, for each point.
        parts: name of a part to its bytes at each point; with ``"rounding"`` they
            add up to what is allocated.
        reserved: bytes reserved at each point.
        ops: what ran at each point, for people.
        phases: first event, name and step of each phase.
    """

    event: tuple[int, ...]
    parts: Mapping[str, tuple[int, ...]]
    reserved: tuple[int, ...]
    ops: tuple[str, ...]
    phases: tuple[tuple[int, str, int], ...]
