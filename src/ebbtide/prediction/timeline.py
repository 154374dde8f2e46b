"""What a trace holds over its events, by part, and what runs at each.

All is done on whole columns, so that a million events cost a moment.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ebbtide.prediction.parts import CATEGORY_PARTS, Peak, Timeline
from ebbtide.trace.model import Event, Ints, Trace

POINTS = 2000
"""About how many points a timeline keeps: more than a chart has pixels."""


def moment(trace: Trace, event: int) -> Peak:
    """The phase, operation, module and line that `event` belongs to."""
    if event >= len(trace.event_kind):  # a trace without events has its peak at 0 all the same
        return Peak(phase="", step=0, op="", module="", line="", event=event)
    phase = int(_latest(trace, Event.PHASE)[event])
    op = int(running_ops(trace)[event])
    name, step = ("", 0) if phase < 0 else (trace.phases[phase].name, trace.phases[phase].step)
    return Peak(
        phase=name,
        step=step,
        op="" if op < 0 else _text(trace.names, trace.ops.name[op]),
        module="" if op < 0 else _text(trace.modules, trace.ops.module[op]),
        line="" if op < 0 else _text(trace.lines, trace.ops.line[op]),
        event=event,
    )


def running_ops(trace: Trace) -> Ints:
    """The row of `trace.ops` that each event belongs to, -1 where none.

    That of the allocation itself, else the latest operation of the same phase.
    """
    op = _latest(trace, Event.OP)
    op[_positions(trace, Event.OP) < _positions(trace, Event.PHASE)] = -1
    allocs = trace.event_kind == Event.ALLOC
    own = trace.allocs.op[trace.event_arg[allocs]]
    op[allocs] = np.where(own >= 0, own, op[allocs])
    return op


def timeline(
    trace: Trace,
    sizes: Ints,
    allocated: Ints,
    reserved: Ints,
    *,
    keep: Iterable[int] = (),
    points: int = POINTS,
) -> Timeline:
    """Memory by part over the events, thinned out.

    Args:
        trace: what was recorded.
        sizes: requested bytes of each row of `trace.allocs`.
        allocated: bytes allocated after each event.
        reserved: bytes reserved after each event.
        keep: events that must stay.
        points: about how many events to keep.
    """
    chosen = thin_out(allocated, reserved, keep, points)
    phases = np.flatnonzero(trace.event_kind == Event.PHASE)
    parts = _parts_over_time(trace, sizes, chosen)
    requested = np.sum(list(parts.values()), axis=0)
    parts["rounding"] = allocated[chosen] - requested
    ops = running_ops(trace)[chosen]
    return Timeline(
        event=tuple(chosen.tolist()),
        parts={name: tuple(column.tolist()) for name, column in parts.items() if column.any()},
        reserved=tuple(reserved[chosen].tolist()),
        ops=tuple(_op_text(trace, int(op)) for op in ops),
        phases=tuple(
            (int(event), trace.phases[row].name, trace.phases[row].step)
            for event, row in zip(phases, trace.event_arg[phases], strict=True)
        ),
    )


def thin_out(allocated: Ints, reserved: Ints, keep: Iterable[int], points: int) -> Ints:
    """Events to show: of each stretch those with most and with least allocated.

    The peak of allocated is among them, and so is the first event at the peak of reserved.
    """
    total = len(allocated)
    if total <= points:
        return np.arange(total)
    edges = np.linspace(0, total, max(points // 2, 1) + 1).astype(np.int64)[:-1]
    highest = [edge + int(np.argmax(part)) for edge, part in _stretches(allocated, edges)]
    lowest = [edge + int(np.argmin(part)) for edge, part in _stretches(allocated, edges)]
    first_peak = int(np.argmax(reserved))
    return np.unique(np.array([0, total - 1, first_peak, *keep, *highest, *lowest], np.int64))


def _stretches(values: Ints, edges: Ints) -> Iterable[tuple[int, Ints]]:
    return zip(edges.tolist(), np.split(values, edges[1:]), strict=True)


def _parts_over_time(trace: Trace, sizes: Ints, chosen: Ints) -> dict[str, Ints]:
    """Requested bytes of each part at the `chosen` events."""
    is_alloc, is_free = trace.event_kind == Event.ALLOC, trace.event_kind == Event.FREE
    row = np.where(is_alloc | is_free, trace.event_arg, 0)
    sign = is_alloc.astype(np.int64) - is_free
    if not len(sizes):
        return {part: np.zeros(len(chosen), np.int64) for part in CATEGORY_PARTS.values()}
    change, category = sign * sizes[row], trace.allocs.category[row]
    return {
        part: np.cumsum(np.where(category == index, change, 0))[chosen]
        for index, part in CATEGORY_PARTS.items()
    }


def _positions(trace: Trace, kind: Event) -> Ints:
    """For each event, the index of the latest event of `kind` up to it, -1 before the first."""
    index = np.arange(len(trace.event_kind))
    return np.maximum.accumulate(np.where(trace.event_kind == kind, index, -1))


def _latest(trace: Trace, kind: Event) -> Ints:
    """For each event, the argument of the latest event of `kind` up to it, -1 before the first."""
    at = _positions(trace, kind)
    return np.where(at >= 0, trace.event_arg[np.maximum(at, 0)], -1)


def _text(strings: tuple[str, ...], index: npt.NDArray[np.int64] | int) -> str:
    return strings[int(index)] if index >= 0 else ""


def _op_text(trace: Trace, op: int) -> str:
    if op < 0:
        return ""
    name = _text(trace.names, trace.ops.name[op])
    module = _text(trace.modules, trace.ops.module[op])
    return f"{name} in {module}" if module else name
