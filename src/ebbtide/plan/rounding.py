"""Turn what the exact program found into levels that the runtime can carry out."""

from __future__ import annotations

from ebbtide.plan.checkmate import Optimum, stages_of
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.levels import KEPT, LENT, level
from ebbtide.plan.simulate import NEVER


def levels_of(graph: StepGraph, found: Optimum) -> dict[int, int]:
    """The levels that hold what `found` holds, as nearly as one level a storage can.

    The program may hold a storage, let it go and hold it again at any stages; a level says
    for how long it is kept first and from when on it is held at last.
    """
    stages = stages_of(graph)
    if not stages:
        return {}
    held = [found.kept, *(found.held.get(stage.event, frozenset()) for stage in stages[:-1])]
    when: dict[int, list[tuple[int, int]]] = {}
    for t, stage in enumerate(stages):
        for use in stage.uses:
            when.setdefault(use.storage, []).append((t, use.position))
    tops = [max(use.position for use in stage.uses) for stage in stages]
    levels: dict[int, int] = {}
    for each in sorted({*when, *(storage for one in held for storage in one)}):
        if graph.storages[each].calls and each not in graph.fixed:
            at = [each in one for one in held]
            levels[each] = _level(at, when.get(each, []), tops)
    return levels


def _level(at: list[bool], uses: list[tuple[int, int]], tops: list[int]) -> int:
    """Of a storage that is there at the beginning of the stages `at`."""
    first = 0  # the stages at whose beginning it has been there from the forward pass on
    while first < len(at) and at[first]:
        first += 1
    needed = max((t for t, _ in uses), default=-1)
    last = max((t for t, there in enumerate(at) if there), default=-1)
    if first and (last < first) and (needed < first):
        return KEPT
    begin = last
    while begin > 0 and at[begin - 1]:
        begin -= 1
    holds = NEVER
    if last >= max(needed, 0) and begin > 0:
        holds = tops[begin - 1]
    covered = [position for t, position in uses if t < first]
    if not covered and holds == NEVER:
        return LENT
    return min(level(min(covered) if covered else None, holds), KEPT - 1)
