"""Make traces at several batch sizes comparable where they differ in what does not matter.

A data set may have two batches for an evaluation at one size and one at another: after
the peak, such a difference can be cut off with all that follows.

A reduction takes scratch space from some size on, a sort from another: an allocation
that is there at one batch size and not at the next. Where the operations and all other
allocations are the same, such a workspace is a row of 0 bytes in the traces without it,
which costs nothing when they are replayed, and an ordinary row in a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from graphlib import CycleError, TopologicalSorter

import numpy as np

from ebbtide.prediction.replaying import live_peak
from ebbtide.trace.model import AllocTable, Category, Event, Ints, OpTable, Trace

# Plain integers: comparing enumeration members would cost more than all the rest.
_ALLOC, _FREE, _OP, _RECORD = map(int, (Event.ALLOC, Event.FREE, Event.OP, Event.RECORD_STREAM))
# The gap of an event: the number of its operation, and how many events that are no
# workspace's have come since that began.
Gap = tuple[int, int]
# A workspace: the gap in which it is taken, and which of those taken there it is.
Scratch = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """A trace in two parts.

    Attributes:
        fixed: the events but those of workspaces, with rows counted without workspaces.
        moves: in each gap, what workspaces do: kind and which one.
        rows: row of each workspace.
        kept: rows of all other allocations.
    """

    fixed: list[tuple[int, int, int]]
    moves: dict[Gap, list[tuple[int, Scratch]]]
    rows: dict[Scratch, int]
    kept: list[int]


def without_syncs(trace: Trace) -> Trace:
    """`trace` without host synchronisations: a progress line now and then, and no memory."""
    kept = trace.event_kind != Event.SYNC
    return replace(
        trace,
        event_kind=trace.event_kind[kept],
        event_arg=trace.event_arg[kept],
        event_extra=trace.event_extra[kept],
    )


def beginnings(traces: Sequence[Trace]) -> list[Trace] | None:
    """The traces up to the last phase in which they still do the same operations.

    None where that is nowhere, or where one of them has its peak only later.
    """
    names = [np.asarray(trace.names, object)[trace.ops.name] for trace in traces]
    shared = min(len(each) for each in names)
    same = np.ones(shared, bool)
    for each in names[1:]:
        same &= each[:shared] == names[0][:shared]
    differing = np.flatnonzero(~same)
    op = int(differing[0]) if len(differing) else shared
    phases = {_phase_of(trace, op) for trace in traces}
    if len(phases) > 1 or min(phases) < 1:
        return None
    cuts = [_cut(trace, min(phases)) for trace in traces]
    if any(_peak(trace) != _peak(cut) for trace, cut in zip(traces, cuts, strict=True)):
        return None
    return cuts


def _phase_of(trace: Trace, op: int) -> int:
    """The phase of operation `op`, the last where `trace` has ended before; -1 for none."""
    return int(trace.ops.phase[op]) if op < len(trace.ops.phase) else len(trace.phases) - 1


def _cut(trace: Trace, phase: int) -> Trace:
    """`trace` up to the beginning of that phase."""
    starts = (trace.event_kind == Event.PHASE) & (trace.event_arg == phase)
    end = int(np.flatnonzero(starts)[0])
    kinds = trace.event_kind[:end]
    ops, rows = int((kinds == Event.OP).sum()), int((kinds == Event.ALLOC).sum())
    return replace(
        trace,
        phases=trace.phases[:phase],
        ops=OpTable(**{each.name: getattr(trace.ops, each.name)[:ops] for each in fields(OpTable)}),
        allocs=AllocTable(
            **{each.name: getattr(trace.allocs, each.name)[:rows] for each in fields(AllocTable)}
        ),
        event_kind=kinds,
        event_arg=trace.event_arg[:end],
        event_extra=trace.event_extra[:end],
    )


def _peak(trace: Trace) -> int:
    return live_peak(trace, trace.allocs.likely_bytes)


def with_equal_rows(traces: Sequence[Trace]) -> list[Trace]:
    """The traces with rows of 0 bytes for the workspaces that only others of them have.

    They come back as they are where they differ in anything else.
    """
    reads = [_read(trace) for trace in traces]
    first = reads[0]
    if any(read.fixed != first.fixed for read in reads[1:]):
        return list(traces)
    moves = _merged([read.moves for read in reads])
    if moves is None:
        return list(traces)
    return [_rebuilt(trace, read, first, moves) for trace, read in zip(traces, reads, strict=True)]


def _read(trace: Trace) -> _Read:
    scratch = trace.allocs.category == Category.WORKSPACE
    number = np.cumsum(~scratch) - 1
    named: dict[int, Scratch] = {}
    read = _Read(fixed=[], moves={}, rows={}, kept=np.flatnonzero(~scratch).tolist())
    gap: Gap = (-1, 0)
    freeing = 0  # where the present stretch of frees began: their order means nothing
    columns = (trace.event_kind, trace.event_arg, trace.event_extra)
    for kind, arg, extra in zip(*(column.tolist() for column in columns), strict=True):
        on_row = kind in (_ALLOC, _FREE, _RECORD)
        if on_row and scratch[arg]:
            if kind == _ALLOC:
                # What has been freed before it is there for it: only frees after it are alike.
                freeing = _order_frees(read.fixed, freeing, len(read.fixed))
                taken = sum(move == _ALLOC for move, _ in read.moves.get(gap, ()))
                named[arg] = (*gap, taken)
                read.rows[named[arg]] = arg
            read.moves.setdefault(gap, []).append((kind, named[arg]))
            continue
        gap = (arg, 0) if kind == _OP else (gap[0], gap[1] + 1)
        read.fixed.append((kind, int(number[arg]) if on_row else arg, extra))
        if kind != _FREE:
            freeing = _order_frees(read.fixed, freeing, len(read.fixed) - 1) + 1
    _order_frees(read.fixed, freeing, len(read.fixed))
    return read


def _order_frees(fixed: list[tuple[int, int, int]], start: int, end: int) -> int:
    """Put a stretch of frees in ascending order. Returns its end."""
    fixed[start:end] = sorted(fixed[start:end])
    return end


def _merged(
    moves: Sequence[dict[Gap, list[tuple[int, Scratch]]]],
) -> dict[Gap, list[tuple[int, Scratch]]] | None:
    """The moves of all traces in each gap, in an order that holds for each of them.

    None where there is no such order, or where one workspace is freed at two places.
    """
    merged: dict[Gap, list[tuple[int, Scratch]]] = {}
    for gap in dict.fromkeys(gap for each in moves for gap in each):
        order: TopologicalSorter[tuple[int, Scratch]] = TopologicalSorter()
        for each in moves:
            found = each.get(gap, [])
            for before, after in zip([None, *found], found, strict=False):
                order.add(after, *([] if before is None else [before]))
        try:
            merged[gap] = list(order.static_order())
        except CycleError:
            return None
    every = [move for each in merged.values() for move in each]
    return merged if len(every) == len(set(every)) else None


def _rebuilt(
    trace: Trace, read: _Read, first: _Read, moves: dict[Gap, list[tuple[int, Scratch]]]
) -> Trace:
    """`trace` with the workspaces of all, in the order of `first`'s other events."""
    events: list[tuple[int, int, int]] = []
    sources: list[tuple[int, int]] = []  # of each new row: row in the trace or -1, operation
    rows: dict[Scratch | int, int] = {}

    def take(key: Scratch | int, row: int, op: int) -> int:
        rows[key] = len(sources)
        sources.append((row, op))
        return rows[key]

    def scratch(gap: Gap) -> None:
        for kind, key in moves.get(gap, ()):
            if kind == _ALLOC:
                take(key, read.rows.get(key, -1), gap[0])
            events.append((kind, rows[key], 0))

    gap: Gap = (-1, 0)
    scratch(gap)
    for kind, arg, extra in first.fixed:
        if kind == _ALLOC:
            row = read.kept[arg]
            arg = take(arg, row, int(trace.allocs.op[row]))
        elif kind in (_FREE, _RECORD):
            arg = rows[arg]
        gap = (arg, 0) if kind == _OP else (gap[0], gap[1] + 1)
        events.append((kind, arg, extra))
        scratch(gap)
    columns = np.array(events, np.int64).reshape(-1, 3).T
    return replace(
        trace,
        allocs=_allocs(trace, np.array(sources, np.int64).reshape(-1, 2)),
        event_kind=columns[0].astype(np.uint8),
        event_arg=columns[1],
        event_extra=columns[2],
    )


def _allocs(trace: Trace, sources: Ints) -> AllocTable:
    row, op = sources[:, 0], sources[:, 1]
    there = row >= 0
    held = trace.allocs
    if not len(held.op):
        return held

    def sizes(column: Ints) -> Ints:
        return np.where(there, column[row], 0)

    return AllocTable(
        likely_bytes=sizes(held.likely_bytes),
        low_bytes=sizes(held.low_bytes),
        high_bytes=sizes(held.high_bytes),
        fallback_bytes=sizes(held.fallback_bytes),
        category=np.where(there, held.category[row], int(Category.WORKSPACE)),
        op=op,
        stream=np.where(there, held.stream[row], trace.ops.stream[op]),
    )
