"""Whether a trace from elsewhere hangs together, before anything is reckoned from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from ebbtide.errors import SnapshotError
from ebbtide.trace.model import Category, Event, Trace

# Beyond any GPU, and sums of a million of them still fit 64 bits.
_MOST_BYTES = 1 << 43


def check(trace: Trace, name: str) -> None:
    """See that every column has its length and type, and every index something to point at.

    Args:
        trace: as `load_trace` returned it.
        name: of its file, for the message.

    Raises:
        SnapshotError: it does not.
    """
    for what, fine in _conditions(trace):
        if not fine:
            raise SnapshotError(f"{name} is no sound trace: {what}. Record it again.")


def _conditions(trace: Trace) -> Iterator[tuple[str, bool]]:
    """What should hold and whether it does; later ones may be asked only if all before do."""
    texts: list[Any] = [trace.gpu, trace.torch_version]
    texts += [*trace.names, *trace.modules, *trace.lines]
    texts += [phase.name for phase in trace.phases]
    texts += [text for guess in trace.guesses for text in (guess.kind, guess.text)]
    yield "a name is no text", all(isinstance(text, str) for text in texts)
    counts = [phase.step for phase in trace.phases] + [guess.count for guess in trace.guesses]
    yield "a step or count is no number", all(type(count) is int for count in counts)
    yield "its notes are no table", isinstance(trace.meta, dict)
    batch = trace.meta.get("batch")
    yield "its batch size is no number", batch is None or (type(batch) is int and batch > 0)
    tables: dict[str, list[Any]] = {
        "operations": [getattr(trace.ops, each.name) for each in fields(trace.ops)],
        "allocations": [getattr(trace.allocs, each.name) for each in fields(trace.allocs)],
        "events": [trace.event_kind, trace.event_arg, trace.event_extra],
    }
    for label, columns in tables.items():
        yield f"its {label} are no columns", all(column.ndim == 1 for column in columns)
        yield f"its {label} differ in length", len({len(column) for column in columns}) == 1
        yield f"its {label} are no numbers", all(column.dtype.kind in "iuf" for column in columns)
    yield from _in_tables(trace)
    yield from _in_events(trace)


def _in_tables(trace: Trace) -> Iterator[tuple[str, bool]]:
    ops, allocs = trace.ops, trace.allocs
    for label, column, low, count in (
        ("names", ops.name, 0, len(trace.names)),
        ("rates", ops.rate, 0, len(trace.names)),
        ("modules", ops.module, 0, len(trace.modules)),
        ("lines", ops.line, 0, len(trace.lines)),
        ("phases", ops.phase, -1, len(trace.phases)),
        ("categories", allocs.category, 0, len(Category)),
        ("operations", allocs.op, -1, len(ops.name)),
    ):
        yield f"an index of {label} points nowhere", _within(column, low, count)
    sizes = (allocs.low_bytes, allocs.likely_bytes, allocs.high_bytes, allocs.fallback_bytes)
    yield "an allocation has an impossible size", all(_within(s, 0, _MOST_BYTES) for s in sizes)
    yield (
        "a range of bytes is upside down",
        bool(((sizes[0] <= sizes[1]) & (sizes[1] <= sizes[2])).all()),
    )
    costs = (ops.flops, ops.moved_bytes, ops.seconds)
    yield (
        "an operation has an impossible cost",
        all(bool(np.isfinite(cost).all()) and _within(cost, 0, 1 << 62) for cost in costs),
    )


def _in_events(trace: Trace) -> Iterator[tuple[str, bool]]:
    kind, arg = trace.event_kind, trace.event_arg
    yield "an event is of no kind", _within(kind, 0, len(Event))
    for events, label, count in (
        ((Event.ALLOC, Event.FREE, Event.RECORD_STREAM), "allocations", len(trace.allocs.op)),
        ((Event.OP,), "operations", len(trace.ops.name)),
        ((Event.PHASE,), "phases", len(trace.phases)),
    ):
        chosen = arg[np.isin(kind, events)]
        yield f"an event points at none of the {label}", _within(chosen, 0, count)
    rows = arg[kind == Event.ALLOC]
    yield "memory is taken twice or out of order", bool((rows == np.arange(len(rows))).all())
    freed = np.flatnonzero(kind == Event.FREE)
    yield "memory is freed twice", len(np.unique(arg[freed])) == len(freed)
    taken = np.flatnonzero(kind == Event.ALLOC)
    fine = arg[freed] < len(taken)
    yield "memory is freed that was never taken", bool(fine.all())
    yield "memory is freed before it is taken", bool((taken[arg[freed]] < freed).all())


def _within(column: Any, low: int, end: int) -> bool:
    return bool(((column >= low) & (column < end)).all())
