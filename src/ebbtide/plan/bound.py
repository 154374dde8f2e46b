"""How little must be computed again at least: a linear program over one moment of the step.

At any moment only so much can be held. What backward still needs and is not held then must be
computed after it, once at least, with all that it is computed from and that is not held. With
fractions allowed this is a small linear program, and its value is a lower bound for every way
to carry the step out, also for ways that the runtime does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from ebbtide.plan.graph import StepGraph


@dataclass(frozen=True, slots=True)
class Bound:
    """The answer of the program.

    Attributes:
        seconds: no choice computes less again.
        held: by storage that backward needs after the moment, or that something is made from
            then, the share of it that is held.
    """

    seconds: float
    held: dict[int, float]


def least(graph: StepGraph, budget_bytes: int) -> Bound:
    """What any choice within `budget_bytes` computes again at least.

    The moment is the one at which most would be there if everything were kept.
    """
    event = _fullest(graph)
    if event is None:
        return Bound(0.0, {})
    return _at(graph, budget_bytes, event)


def _fullest(graph: StepGraph) -> int | None:
    index = graph.index
    spans = [
        (index.free[each] + 1, index.release[each], index.nbytes[each])
        for each in (*graph.saved, *index.other)
        if index.release[each] > index.free[each]
    ]
    seen = np.where(index.looks, index.program + index.touched + index.held(spans), -1)
    return int(seen.argmax()) if len(seen) and index.uses else None


def _at(graph: StepGraph, budget: int, event: int) -> Bound:
    index = graph.index
    pinned = {use.storage for use in index.uses if use.event <= event <= use.over}
    needed = {use.storage for use in index.uses if use.event > event} - pinned
    chosen = {
        each
        for each, calls in enumerate(index.made_by)
        if calls and each not in index.fixed and index.free[each] < event and each not in pinned
    }
    resident = int(index.program[event] + index.touched[event])
    resident += sum(
        index.nbytes[each]
        for each in (*index.other, *index.fixed)
        if index.free[each] < event <= index.release[each]
    )
    resident += sum(
        index.nbytes[each]
        for each in pinned - index.fixed
        if index.made_by[each] and index.free[each] < event
    )
    held: dict[int, int] = {}
    called: dict[int, int] = {}
    rows: list[tuple[int, int, float]] = []
    limits: list[float] = []

    def call(number: int) -> int:
        return called.setdefault(number, len(called))

    waiting = [each for each in needed if each in chosen]
    seen = set(waiting)
    for each in waiting:  # grows as sources are found
        held[each] = len(held)
        for number in index.made_by[each]:
            for source in index.sources[number]:
                if source in chosen and source not in seen:
                    seen.add(source)
                    waiting.append(source)
            call(number)
    if not held:
        return Bound(0.0, {})
    shift = len(held)
    for each, at in held.items():
        for number in index.made_by[each]:
            if each in needed:
                rows += [(len(limits), at, -1.0), (len(limits), shift + called[number], -1.0)]
                limits.append(-1.0)
    for number, at in called.items():
        for source in index.sources[number]:
            if source not in held:
                continue
            for maker in index.made_by[source]:
                if maker == number:
                    continue
                rows += [
                    (len(limits), shift + at, 1.0),
                    (len(limits), held[source], -1.0),
                    (len(limits), shift + called[maker], -1.0),
                ]
                limits.append(0.0)
    scale = float(max(budget, 1))
    rows += [(len(limits), at, index.nbytes[each] / scale) for each, at in held.items()]
    limits.append(max(budget - resident, 0) / scale)
    i, k, v = zip(*rows, strict=True)
    costs = np.zeros(shift + len(called))
    for number, at in called.items():
        costs[shift + at] = index.seconds[number]
    unit = float(costs.max()) or 1.0
    found = linprog(
        costs / unit,
        A_ub=csr_array((v, (i, k)), shape=(len(limits), len(costs))),
        b_ub=np.array(limits),
        bounds=(0.0, 1.0),
        method="highs",
    )
    if found.status != 0:
        return Bound(0.0, {})
    return Bound(
        max(float(found.fun) * unit, 0.0),
        {each: float(found.x[at]) for each, at in held.items()},
    )
