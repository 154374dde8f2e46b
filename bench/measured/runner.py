"""Run a case on the virtual GPU and read the figure that its row has."""

from __future__ import annotations

import gc
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ebbtide.gpus import Gpu, context_bytes, find
from ebbtide.units import MiB, Range, parse_release
from ebbtide.vgpu.allocator import (
    AllocatorConfig,
    Block,
    CachingAllocator,
    OutOfMemory,
    TieBreak,
)
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tape import ALLOC, EMPTY_CACHE, FREE, RECORD_STREAM, Tape
from ebbtide.vgpu.virtual_gpu import VirtualGpu

from .case import BATCH, CATALOGUE, GROWTH, LOADED, MODEL, PEAK, STATED, Case, Unbuilt, Workload
from .result import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

# The first small tensor takes a segment of this size (kSmallBuffer in torch's
# CUDACachingAllocator.h), which a context that was read after it includes.
_FIRST_SEGMENT = 2 * MiB


_known: dict[str, Figures] = {}  # by `Case.shared`


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What one run came to, in bytes.

    `reserved` has the peak for the lowest, the likely and the highest workspaces.
    """

    allocated_peak: int
    reserved: Range
    notes: dict[str, int]
    seconds: float


class VirtualMeter:
    """The meter of a workload on the virtual GPU."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._memory = gpu.memory
        self.notes: dict[str, int] = {}

    def reset_peak(self) -> None:
        self._memory.reset_peak()

    def allocated(self) -> int:
        return self._memory.memory_allocated()

    def reserved(self) -> int:
        return self._memory.memory_reserved()

    def peak(self) -> int:
        return self._memory.max_memory_allocated()

    def note(self, name: str, value: int) -> None:
        self.notes[name] = value


def run(case: Case) -> Figures:
    """The figures of one case; whatever the workload raises goes through.

    Of several draws the likely figure is the mean; the range spans them all.
    """
    start = time.perf_counter()
    if case.shared in _known:
        return _known[case.shared]
    if not case.draws:
        figures = _run_once(case, case.run)
        if case.shared:
            _known[case.shared] = figures
        return figures
    outcomes = [(_run_once(case, workload), count) for workload, count in case.draws]
    ranges = [figures.reserved for figures, _ in outcomes]
    total = sum(count for _, count in outcomes)
    reserved = Range(
        min(r.low for r in ranges),
        round(sum(f.reserved.likely * count for f, count in outcomes) / total),
        max(r.high for r in ranges),
    )
    return replace(outcomes[0][0], reserved=reserved, seconds=time.perf_counter() - start)


def _run_once(case: Case, workload: Workload) -> Figures:
    start = time.perf_counter()
    spec = find(case.gpu)
    release = parse_release(case.torch)
    capability = spec.compute_capability
    if capability is None:
        raise ValueError(f"{case.row.id}: {spec.name} is no CUDA device")
    context = KernelContext.of(capability, release, spec.sm_count, case.environment)
    with VirtualGpu(
        spec, torch_version=release, allocator=AllocatorConfig(), context=context
    ) as gpu:
        meter = VirtualMeter(gpu)
        workload(torch.device("cuda"), meter)
        figures = Figures(
            allocated_peak=gpu.memory.max_memory_allocated(),
            reserved=_reserved(gpu.tape, _limit(case, spec), TieBreak.of(release)),
            notes=meter.notes,
            seconds=time.perf_counter() - start,
        )
    gc.collect()
    return figures


def _limit(case: Case, spec: Gpu) -> tuple[int, int] | None:
    """Usable bytes and the context's, where the row says on which GPU it was measured.

    It matters to workspaces: cuDNN does with less where one does not fit.
    """
    if case.row.kind != "nvidia-smi":
        return None
    release = parse_release(case.torch)
    return spec.usable_bytes, context_bytes(spec, release).likely


def _reserved(tape: Tape, limit: tuple[int, int] | None, tie_break: TieBreak) -> Range:
    # What each convolution does with where nothing is free: an engine without a workspace.
    least = [min(pair) for pair in zip(tape.alloc_low, tape.alloc_fallback, strict=True)]
    likely = _replay(tape, tape.alloc_bytes, limit, tie_break)
    # A smaller workspace may leave holes that a larger one would have filled.
    ends = [
        _replay(tape, sizes, limit, tie_break)
        for sizes in (tape.alloc_low, tape.alloc_high, least)
        if sizes != tape.alloc_bytes
    ]
    return Range(min([likely, *ends]), likely, max([likely, *ends]))


def _replay(
    tape: Tape, sizes: Sequence[int], limit: tuple[int, int] | None, tie_break: TieBreak
) -> int:
    """The peak of what is reserved if the allocations had these sizes.

    Without a limit where the workload does not fit it even with the least workspaces.
    """
    total, other = limit or (None, 0)
    allocator = CachingAllocator(
        total, config=AllocatorConfig(), other_bytes=other, tie_break=tie_break
    )
    try:
        return _peak(tape, sizes, allocator)
    except OutOfMemory:
        return _replay(tape, sizes, None, tie_break)


def _peak(tape: Tape, sizes: Sequence[int], allocator: CachingAllocator) -> int:
    blocks = {}
    for position, (kind, arg) in enumerate(zip(tape.kind, tape.arg, strict=True)):
        if kind == ALLOC:
            if sizes[arg]:
                blocks[arg] = _malloc(tape, arg, sizes[arg], allocator)
        elif kind == FREE:
            if arg in blocks:
                allocator.free(blocks.pop(arg))
        elif kind == EMPTY_CACHE:
            allocator.empty_cache()
        elif kind == RECORD_STREAM and arg in blocks:
            allocator.record_stream(blocks[arg], tape.extra[position])
    return allocator.max_memory_reserved()


def _malloc(tape: Tape, row: int, nbytes: int, allocator: CachingAllocator) -> Block:
    stream = tape.alloc_stream[row]
    try:
        return allocator.malloc(nbytes, stream)
    except OutOfMemory:
        if tape.alloc_fallback[row] >= tape.alloc_bytes[row]:
            raise
        return allocator.malloc(min(nbytes, tape.alloc_fallback[row]), stream)


def context_of(case: Case) -> Range:
    """What the process holds beside the allocator, as far as the row's figure counts it."""
    if case.context == STATED:
        found = re.search(r"context alone = (\d+) MiB", case.row.notes)
        stated = int(found[1]) if found else 1343
        return Range.exact(stated * MiB - _FIRST_SEGMENT)
    if case.context in (CATALOGUE, GROWTH, LOADED):
        whole = context_bytes(find(case.gpu), parse_release(case.torch))
        if case.context == CATALOGUE:
            return whole
        if case.context == LOADED:
            # Some libraries may have come later than the model.
            return Range(0, 0, whole.likely - whole.low)
        # The catalogue's lowest figure is the bare context; the kernels and handles that
        # the run loads come on top, unless the process had loaded them before: half of
        # them in the middle.
        return Range(0, (whole.likely - whole.low) // 2, whole.high - whole.low)
    return Range.exact(0)


def baseline_of(case: Case, figures: Figures) -> Range:
    """What the source subtracted of what the allocator holds: zero or negative."""
    if case.context != LOADED:
        return Range.exact(0)
    model, batch = (figures.notes[name] for name in (MODEL, BATCH))
    return Range(-batch, -model, -model)


def result_of(case: Case | Unbuilt) -> Result:
    """The line of the table for a case; a workload that fails is a line too."""
    row = case.row
    if isinstance(case, Unbuilt):
        return Result(
            id=row.id,
            group=case.group,
            kind=row.kind,
            measured_bytes=row.measured_bytes,
            remark=f"not rebuilt: {case.reason}",
        )
    try:
        figures = run(case)
    except Exception as error:  # one row's failure must not hide the others
        first = str(error).strip().splitlines()
        text = f"failed: {type(error).__name__}: {first[0] if first else ''}"
        return Result(
            id=row.id,
            group=case.group,
            kind=row.kind,
            measured_bytes=row.measured_bytes,
            remark=text[:300],
        )
    predicted, peak = _predicted(case, figures)
    return Result(
        id=row.id,
        group=case.group,
        kind=row.kind,
        measured_bytes=row.measured_bytes,
        low_bytes=predicted.low,
        likely_bytes=predicted.likely,
        high_bytes=predicted.high,
        peak_bytes=peak,
        seconds=figures.seconds,
        remark=case.assumption,
    )


def _predicted(case: Case, figures: Figures) -> tuple[Range, int | None]:
    """The figure of the row's kind and moment, and the run's peak where that is another."""
    if case.moment != PEAK:
        return Range.exact(figures.notes[case.moment]), figures.allocated_peak
    if case.row.kind == "allocated":
        return Range.exact(figures.allocated_peak), None
    if case.row.kind == "reserved":
        return figures.reserved, None
    return figures.reserved + baseline_of(case, figures) + context_of(case), figures.allocated_peak
