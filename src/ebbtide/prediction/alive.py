"""Who is alive at an event: allocations, by category or by module, operation and line.

An allocation is alive from its ``ALLOC`` event, included, to its ``FREE`` event,
excluded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from ebbtide.prediction.parts import CATEGORY_PARTS, Alive
from ebbtide.trace.model import Category, Event, Ints, Trace


def alive_rows(trace: Trace, event: int) -> Ints:
    """Rows of `trace.allocs` that are alive once `event` has happened, in ascending order."""
    never = len(trace.event_kind)
    count = len(trace.allocs.category)
    born = np.full(count, never, np.int64)
    died = np.full(count, never, np.int64)
    for when, kind in ((born, Event.ALLOC), (died, Event.FREE)):
        events = np.flatnonzero(trace.event_kind == kind)
        when[trace.event_arg[events]] = events
    return np.flatnonzero((born <= event) & (died > event))


def by_category(trace: Trace, event: int, sizes: Ints) -> dict[str, int]:
    """Requested bytes alive at `event`, for each part of `CATEGORY_PARTS`."""
    rows = alive_rows(trace, event)
    category = trace.allocs.category[rows]
    return {
        part: int(sizes[rows[category == index]].sum()) for index, part in CATEGORY_PARTS.items()
    }


def alive_at(trace: Trace, event: int, sizes: Ints) -> tuple[Alive, ...]:
    """What is alive at `event`, grouped by category, module, operation and line.

    Args:
        trace: what was recorded.
        event: index of an event of it.
        sizes: requested bytes of each row of `trace.allocs`.

    Returns:
        Groups, those with most bytes first; their bytes add up to what is requested.
    """
    rows = alive_rows(trace, event)
    op = trace.allocs.op[rows]
    known = op >= 0
    keys = np.full((len(rows), 4), -1, np.int64)
    keys[:, 0] = trace.allocs.category[rows]
    for column, table in ((1, trace.ops.module), (2, trace.ops.name), (3, trace.ops.line)):
        keys[known, column] = table[op[known]]
    groups, inverse = np.unique(keys, axis=0, return_inverse=True)
    total = np.zeros(len(groups), np.int64)
    count = np.zeros(len(groups), np.int64)
    np.add.at(total, inverse.reshape(-1), sizes[rows])
    np.add.at(count, inverse.reshape(-1), 1)
    order = np.argsort(-total, kind="stable")
    return tuple(
        Alive(
            category=CATEGORY_PARTS[Category(int(groups[index, 0]))],
            module=_text(trace.modules, groups[index, 1]),
            op=_text(trace.names, groups[index, 2]),
            line=_text(trace.lines, groups[index, 3]),
            bytes=int(total[index]),
            count=int(count[index]),
        )
        for index in order
    )


def without_numbers(alive: Iterable[Alive]) -> tuple[Alive, ...]:
    """Rows that differ only in the numbers of their modules as one, ``layers.*.mlp``.

    Most bytes first; the bytes still add up.
    """
    merged: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    for row in alive:
        key = (row.category, _NUMBER.sub("*", row.module), row.op, row.line)
        size, count = merged.get(key, (0, 0))
        merged[key] = (size + row.bytes, count + row.count)
    return tuple(
        Alive(category=key[0], module=key[1], op=key[2], line=key[3], bytes=size, count=count)
        for key, (size, count) in sorted(merged.items(), key=lambda item: -item[1][0])
    )


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def _text(strings: tuple[str, ...], index: int) -> str:
    return strings[int(index)] if index >= 0 else ""
