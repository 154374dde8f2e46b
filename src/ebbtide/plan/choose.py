"""Choose what to keep under a budget, so that the least is computed again.

Starting points are what other methods offer: everything kept, a few narrow cuts kept
(checkpointing in blocks), nested ones. Each is filled up, class by class of storages that play
the same part in repeated layers, with what saves the most time for its bytes. In small steps
the best is then improved storage by storage, and the exact program may be asked as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ebbtide.plan.bound import least
from ebbtide.plan.checkmate import MOST_CALLS, operations, optimum, relaxed
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.levels import KEPT, LENT, Levels, split
from ebbtide.plan.nested import starts
from ebbtide.plan.repeats import classes
from ebbtide.plan.rounding import levels_of
from ebbtide.plan.search import Cost, Search, Stepwise
from ebbtide.plan.simulate import Outcome

_SHORT = 3000
"""Events of a step that is played in a millisecond or two."""
_SMALL = 80
"""Up to so many storages are moved one by one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How long each storage is held, and what it comes to.

    Attributes:
        kept: storages held from the forward pass on.
        outcome: of playing it; `outcome.lasts` is part of the plan.
        holds, keeps: of other storages, as `ebbtide.plan.simulate` takes them.
        bound_seconds: no choice computes less than this again; None where it was not asked for.
    """

    kept: frozenset[int]
    outcome: Outcome
    holds: dict[int, int] = field(default_factory=dict)
    keeps: dict[int, int] = field(default_factory=dict)
    bound_seconds: float | None = None

    @property
    def optimality_gap(self) -> float | None:
        """The most by which the seconds exceed the least possible, as a share of them.

        The bound comes from a linear program: the exact one's relaxation for small steps
        (`ebbtide.plan.checkmate`), that of one moment for others (`ebbtide.plan.bound`).
        """
        if self.bound_seconds is None:
            return None
        seconds = self.outcome.seconds
        return max(1 - self.bound_seconds / seconds, 0.0) if seconds > 0 else 0.0


def seconds(outcome: Outcome) -> float:
    """The cost that is minimised by default."""
    return outcome.seconds


def choose(
    graph: StepGraph,
    budget_bytes: int,
    cost: Cost = seconds,
    *,
    effort: int = 4000,
    exact_nodes: int = 0,
) -> Choice | None:
    """The best choice found whose peak is within `budget_bytes`; None where none was found.

    Args:
        graph: the step.
        budget_bytes: for the peak, `graph.base_bytes` included.
        cost: what is to be small.
        effort: how many choices are played at most, about; fewer of a long step.
        exact_nodes: how far the exact program may branch in a small step; 0 leaves it out.
    """
    everything = {each: KEPT for each in graph.droppable}
    search = Search(graph, budget_bytes, cost, _plays(graph, effort))
    if search.fits(everything):
        return replace(_choice(search, everything), bound_seconds=0.0)
    best = _from_starts(search)
    if best is None:
        best = _lowest(graph, budget_bytes, effort)
        if best is None:
            return None
    if _is_small(graph):
        search.left = max(search.left, effort)
        best = _stepwise(search, best, exact_nodes)
    if best is None:
        return None
    return replace(_choice(search, best), bound_seconds=_bound(graph, budget_bytes, cost))


def front(
    graph: StepGraph, budgets: Iterable[int], cost: Cost = seconds, *, effort: int = 4000
) -> list[Choice | None]:
    """A choice for each budget, in their order; a larger budget never costs more.

    Args:
        graph: the step.
        budgets: in bytes.
        cost: what is to be small.
        effort: for each budget, as in `choose`.
    """
    given = list(budgets)
    best: Choice | None = None
    found: dict[int, Choice | None] = {}
    for budget in sorted(set(given)):
        here = choose(graph, budget, cost, effort=effort)
        if here is not None and (best is None or cost(here.outcome) <= cost(best.outcome)):
            best = here
        elif best is not None:
            bound = here.bound_seconds if here is not None else None
            best = replace(best, bound_seconds=bound)
        found[budget] = best
    return [found[budget] for budget in given]


def smallest(graph: StepGraph, *, effort: int = 4000) -> Choice:
    """The choice with the smallest peak that was found: what a budget must be at least.

    Of choices with that peak the first is taken, whatever it computes again.
    """
    search = Search(graph, 0, seconds, _plays(graph, effort))
    return _choice(search, _lowered(search, effort))


def _lowest(graph: StepGraph, budget: int, effort: int) -> dict[int, int] | None:
    """The levels of the smallest peak, if that is within the budget."""
    search = Search(graph, 0, seconds, _plays(graph, effort))
    levels = _lowered(search, effort)
    return levels if search.play(levels).peak_bytes <= budget else None


def _lowered(search: Search, effort: int) -> dict[int, int]:
    graph = search.graph

    def peak(levels: Levels) -> int:
        return search.play(levels).peak_bytes

    best: dict[int, int] = {each: KEPT for each in graph.droppable}
    free = peak(best) - graph.base_bytes
    for share in (1.0, 0.5, 0.25, 0.12):
        for levels in starts(graph, graph.base_bytes + int(free * share)):
            best = min(best, levels, key=peak)
    if not _is_small(graph):
        return best
    stepwise = Stepwise(search)
    search.left = max(search.left, effort)
    for begin in (best, {each: LENT for each in stepwise.choices}):
        stepwise.lowered(dict(begin))
    lowest: frozenset[tuple[int, int]] = min(
        search.known, key=lambda key: search.known[key].peak_bytes
    )
    return dict(lowest)


def _plays(graph: StepGraph, effort: int) -> int:
    """How many choices may be played: a count, and not a time, so that answers are the same."""
    return effort * _SHORT // max(len(graph.events), _SHORT)


def _choice(search: Search, levels: Levels) -> Choice:
    kept, holds, keeps = split(levels)
    return Choice(kept | search.graph.fixed, search.play(levels), holds, keeps)


def _is_small(graph: StepGraph) -> bool:
    return sum(bool(calls) for calls in graph.index.made_by) <= _SMALL


def _bound(graph: StepGraph, budget: int, cost: Cost) -> float | None:
    """A lower bound where the cost is seconds."""
    if cost is not seconds:
        return None
    bound = least(graph, budget).seconds
    if _is_small(graph) and operations(graph) <= MOST_CALLS:
        bound = max(bound, relaxed(graph, budget) or 0.0)
    return bound


def _from_starts(search: Search) -> dict[int, int] | None:
    """The best of the starting points, filled up."""
    groups = _Groups(search)
    found: list[dict[int, int]] = []
    rounded = _rounded(search)
    if rounded is not None:
        found.append(groups.filled(rounded, groups.by_worth()))
    begins = [levels for levels in starts(search.graph, search.budget) if search.fits(levels)]
    for levels in sorted(begins, key=search.price)[:4]:
        found.append(groups.filled(levels, groups.by_worth()))
    everything = groups.thinned()
    if everything is not None:
        found.append(everything)
    if not found:
        return None
    found.sort(key=search.price)
    best = found[0]
    for levels in found[:2]:
        other = levels
        for _ in range(2):
            other = groups.filled(other, groups.by_gain(other))
        best = min(best, other, key=search.price)
    best = groups.exchanged(best)
    single: list[dict[int, int]] = []
    for levels in [best, *starts(search.graph, search.budget)]:
        lower = groups.eased(dict(levels)) if search.left > 0 else None
        if lower is not None:
            single.append(groups.singly(lower))
    for levels in sorted(single, key=search.price)[:2]:
        best = min(best, groups.exchanged(levels), key=search.price)
    return best


def _rounded(search: Search) -> dict[int, int] | None:
    """What the bound's linear program holds, with as much memory as lets the step itself fit."""
    graph = search.graph
    low, high = 0, search.budget - graph.base_bytes
    best: dict[int, int] | None = None
    for _ in range(7):
        middle = high if best is None and low == 0 else (low + high + 1) // 2
        held = least(graph, graph.base_bytes + middle).held
        levels = {each: KEPT for each, share in held.items() if share > 0.999}
        if search.fits(levels):
            best, low = levels, middle
            if middle == high:
                break
        elif middle == high and low == 0:
            high -= 1
            low = 1
        else:
            high = middle - 1
    return best


def _stepwise(
    search: Search, best: dict[int, int] | None, exact_nodes: int
) -> dict[int, int] | None:
    """Small steps: improved one by one, from several sides."""
    graph = search.graph
    stepwise = Stepwise(search)
    begins: list[dict[int, int]] = [] if best is None else [best]
    if exact_nodes and operations(graph) <= MOST_CALLS:
        found = optimum(graph, search.budget, exact_nodes)
        if found.seconds is not None:
            begins.append(levels_of(graph, found))
    begins += [
        {each: KEPT for each in graph.droppable},
        {each: LENT for each in stepwise.choices},
    ]
    share = search.left // (len(begins) + 1)
    for begin in begins:
        search.left = share
        other = stepwise.lowered(begin)
        if other is not None:
            other = stepwise.raised(other)
            if search.better(other, best):
                best = other
    if best is not None:
        search.left = share
        best = stepwise.improved(best)
    return best


class _Groups:
    """Moves of whole classes."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.graph = search.graph
        self.classes = classes(search.graph)

    def by_worth(self) -> list[list[int]]:
        """Classes by seconds of their own operations for each byte, the best first."""
        index = self.graph.index

        def worth(group: Sequence[int]) -> float:
            first = group[0]
            own = sum(index.seconds[call] for call in index.made_by[first])
            return own / max(index.nbytes[first], 1)

        return sorted(self.classes, key=worth, reverse=True)

    def by_gain(self, levels: Levels) -> list[list[int]]:
        """Classes by what keeping one more of each is found to save for its bytes."""
        search, now = self.search, self.search.price(levels)
        gains: list[tuple[float, int]] = []
        for i, group in enumerate(self.classes):
            rest = [each for each in group if levels.get(each) != KEPT]
            if rest and search.left > 0:
                each = rest[len(rest) // 2]
                saved = now - search.price({**levels, each: KEPT})
                gains.append((-saved / max(self.graph.index.nbytes[each], 1), i))
        return [self.classes[i] for gain, i in sorted(gains) if gain < 0]

    def filled(self, levels: dict[int, int], order: list[list[int]]) -> dict[int, int]:
        """`levels` with as many of each class kept as fit, from the first layers on.

        What is kept of late layers is gone soon in backward, but so is what they would be
        made from; early ones go last and are what the peak of all layers leaves room for.
        """
        for group in order:
            rest = [each for each in group if levels.get(each) != KEPT]
            low, high = 0, len(rest)
            while low < high and self.search.left > 0:
                middle = high if low == 0 and high == len(rest) else (low + high + 1) // 2
                if self.search.fits({**levels, **dict.fromkeys(rest[:middle], KEPT)}):
                    low = middle
                else:
                    high = middle - 1
            more = {**levels, **dict.fromkeys(rest[:low], KEPT)}
            if low and self.search.price(more) < self.search.price(levels):
                levels = more
        return levels

    def singly(self, levels: dict[int, int]) -> dict[int, int]:
        """`levels` with one storage after the other kept, those worth most for their bytes first.

        As many as fit in one piece, and then each that fits and saves something.
        """
        order = [each for group in self.by_worth() for each in group if levels.get(each) != KEPT]
        low, high = 0, len(order)
        while low < high and self.search.left > 0:
            middle = (low + high + 1) // 2
            if self.search.fits({**levels, **dict.fromkeys(order[:middle], KEPT)}):
                low = middle
            else:
                high = middle - 1
        levels = {**levels, **dict.fromkeys(order[:low], KEPT)}
        for each in order[low:]:
            if self.search.left <= 0:
                break
            more = {**levels, each: KEPT}
            if self.search.fits(more) and self.search.price(more) <= self.search.price(levels):
                levels = more
        return levels

    def eased(self, levels: dict[int, int]) -> dict[int, int] | None:
        """`levels` without what is there at the peak and worth least for its bytes."""
        order = {each: i for i, group in enumerate(self.by_worth()) for each in group}
        while not self.search.fits(levels):
            now = self.search.play(levels)
            there = sorted(
                (each for each in now.at_peak if levels.get(each) == KEPT and each in order),
                key=lambda each: -order[each],
            )
            if not there or self.search.left <= 0:
                return None
            over = now.peak_bytes - self.search.budget
            for each in there:
                del levels[each]
                over -= self.graph.index.nbytes[each]
                if over <= 0:
                    break
        return levels

    def thinned(self) -> dict[int, int] | None:
        """Everything kept but what is worth least for its bytes, as far as must be."""
        levels = {each: KEPT for each in self.graph.droppable}
        for group in reversed(self.by_worth()):
            without = {each: code for each, code in levels.items() if each not in set(group)}
            if self.search.fits(without):
                return self.filled(without, [group, *self.by_worth()])
            levels = without
        return None

    def exchanged(self, levels: dict[int, int]) -> dict[int, int]:
        """One class less, or a quarter of it, and filled up again, where that is better."""
        for group in self.classes:
            mine = [each for each in group if levels.get(each) == KEPT]
            for count in {len(mine), len(mine) // 4}:
                if not count or self.search.left <= 0:
                    continue
                gone = set(mine[:count])
                without = {each: code for each, code in levels.items() if each not in gone}
                other = self.filled(without, self.by_gain(without))
                if self.search.better(other, levels):
                    levels = other
                    break
        return levels
