"""Starting points for the search from where the forward pass is narrow, nested if need be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ebbtide.plan.chain import Stage, solve
from ebbtide.plan.cuts import Cut, all_cuts, narrow_cuts, spread
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.levels import KEPT, level

_MOST_CUTS = 48
_UNITS = 240


def starts(graph: StepGraph, budget_bytes: int) -> Iterator[dict[int, int]]:
    """Levels to begin with: cuts in all numbers that make a difference, nested ones, nothing."""
    cuts = narrow_cuts(graph)
    counts = sorted({round(len(cuts) / each) for each in (1, 1.5, 2, 3, 4, 6, 8, 12) if cuts})
    for count in counts:
        yield {each: KEPT for each in spread(cuts, count)}
    yield {}
    free = budget_bytes - graph.base_bytes
    dense = all_cuts(graph)
    for between in (dense, cuts) if len(dense) <= _MOST_CUTS else (cuts,):
        for share in (1.0, 0.85, 0.7, 0.5):
            for late in (0, 1):
                found = nested(graph, between, int(free * share), late)
                if found is not None:
                    yield found


def nested(
    graph: StepGraph, cuts: list[Cut], free_bytes: int, late: int = 0
) -> dict[int, int] | None:
    """The optimum of the chain that the cuts make of the step, as `ebbtide.plan.chain` finds it.

    What lies between two cuts is held when backward is there, and passes before. With `late`
    what the last operation before a cut makes counts as there for its own backward.
    """
    cuts = _thinned(cuts)
    ends = [cut.call for cut in cuts if cut.call < len(graph.calls)] + [len(graph.calls)]
    if free_bytes <= 0 or len(ends) < 2:
        return None
    plan = solve(_stages(graph, cuts, ends), free_bytes, max(free_bytes // _UNITS, 1))
    if plan is None:
        return None
    levels: dict[int, int] = {}
    begin = 0
    of_cut = {each for cut in cuts for each in cut.storages}
    for end in ends:
        for each, calls in enumerate(graph.index.made_by):
            inside = calls and begin <= calls[0] < end and each in graph.droppable
            if inside and each not in of_cut:
                levels[each] = level(None, end - 1 + late)
        begin = end
    for i, cut in enumerate(cuts):
        for each in cut.storages & graph.droppable:
            code = KEPT if i in plan.kept else level(None, ends[plan.held.get(i, i)] - 1 + late)
            levels[each] = max(levels.get(each, 0), code)
        if i in plan.kept:
            levels |= {each: KEPT for each in cut.storages if graph.storages[each].calls}
    return levels


def _thinned(cuts: list[Cut]) -> list[Cut]:
    step = max(-(-len(cuts) // _MOST_CUTS), 1)
    return cuts[len(cuts) - 1 :: -step][::-1] if cuts else []


def _stages(graph: StepGraph, cuts: list[Cut], ends: list[int]) -> list[Stage]:
    """A stage from each cut to the next, with memory as it is when its backward is run."""
    index = graph.index
    stage_of = np.searchsorted(ends, np.arange(len(graph.calls)), side="right")
    seconds = np.zeros(len(ends))
    inside = np.zeros(len(ends), dtype=np.int64)
    turn = np.zeros(len(ends), dtype=np.int64)
    there = np.zeros(len(ends), dtype=np.int64)
    run = np.zeros(len(ends), dtype=np.int64)
    of_cut = {each for cut in cuts for each in cut.storages}
    for call, made in enumerate(index.makes):
        if made:
            at = stage_of[call]
            seconds[at] += index.seconds[call]
            run[at] = max(run[at], index.scratch[call], sum(index.nbytes[one] for one in made))
    for each in graph.droppable - of_cut:
        inside[stage_of[index.made_by[each][0]]] += index.nbytes[each]
    for use, after in zip(index.uses, [*index.uses[1:], None], strict=False):
        end = after.event if after is not None else index.end
        at = min(int(np.searchsorted(ends, use.position, side="right")), len(ends) - 1)
        there[at] = max(there[at], int(index.program[use.event]) - graph.base_bytes)
        most = int(index.program[use.event : end].max(initial=0)) - graph.base_bytes
        turn[at] = max(turn[at], most)
    return [
        Stage(
            nbytes=cuts[i].nbytes if i < len(cuts) else 0,
            seconds=float(seconds[i]),
            run_bytes=int(run[i]),
            turn_bytes=int(inside[i] + turn[i]),
            gradient_bytes=int(there[i]),
        )
        for i in range(len(ends))
    ]
