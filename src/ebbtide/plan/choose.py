"""Choose what to keep under a budget, so that the least is computed again.

Starting points are what other methods offer: everything kept, a few narrow cuts kept
(checkpointing in blocks), everything but what is cheap to make again (selective
checkpointing). Each is filled up with what saves the most time for its bytes, as far as the
played step stays in the budget; the best of all is improved by exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ebbtide.plan.cuts import narrow_cuts, spread
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.simulate import Outcome, simulate

Cost = Callable[[Outcome], float]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to keep, and what it comes to."""

    kept: frozenset[int]
    outcome: Outcome


def seconds(outcome: Outcome) -> float:
    """The cost that is minimised by default."""
    return outcome.seconds


def choose(graph: StepGraph, budget_bytes: int, cost: Cost = seconds) -> Choice | None:
    """The best choice found whose peak is within `budget_bytes`; None where there is none.

    Args:
        graph: the step.
        budget_bytes: for the peak, `graph.base_bytes` included.
        cost: what is to be small.
    """
    search = _Search(graph, budget_bytes, cost)
    everything = graph.droppable
    if search.fits(everything):
        return Choice(everything, search.outcome(everything))
    best: frozenset[int] | None = None
    for start in search.starts():
        found = search.filled(start) if search.fits(start) else search.thinned(start)
        if found is not None and (best is None or search.cost(found) < search.cost(best)):
            best = found
    if best is None:
        return None
    best = search.exchanged(best)
    return Choice(best, search.outcome(best))


class _Search:
    """Evaluations of one search, each made once."""

    def __init__(self, graph: StepGraph, budget: int, cost: Cost) -> None:
        self.graph = graph
        self.budget = budget
        self._cost = cost
        self._known: dict[frozenset[int], Outcome] = {}
        self.order = sorted(graph.droppable, key=self._worth, reverse=True)

    def outcome(self, kept: frozenset[int]) -> Outcome:
        found = self._known.get(kept)
        if found is None:
            found = self._known[kept] = simulate(self.graph, kept)
        return found

    def cost(self, kept: frozenset[int]) -> float:
        return self._cost(self.outcome(kept))

    def fits(self, kept: frozenset[int]) -> bool:
        return self.outcome(kept).peak_bytes <= self.budget

    def starts(self) -> Iterable[frozenset[int]]:
        """Nothing kept, cuts in all numbers that make a difference, everything."""
        cuts = narrow_cuts(self.graph)
        counts = sorted({round(len(cuts) / each) for each in (1, 1.5, 2, 3, 4, 6, 8, 12) if cuts})
        return [spread(cuts, count) for count in counts] + [frozenset(), self.graph.droppable]

    def _worth(self, storage: int) -> float:
        """Seconds of making it again for each of its bytes."""
        made = self.graph.storages[storage]
        return sum(self.graph.calls[call].seconds for call in made.calls) / max(made.nbytes, 1)

    def filled(self, kept: frozenset[int]) -> frozenset[int]:
        """`kept` and as much more as fits: first in one piece, then one by one."""
        rest = [each for each in self.order if each not in kept]
        low, high = 0, len(rest)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(kept.union(rest[:middle])):
                low = middle
            else:
                high = middle - 1
        kept = kept.union(rest[:low])
        for each in rest[low + 1 :]:
            more = kept | {each}
            if self.fits(more):
                kept = more
        return kept

    def thinned(self, kept: frozenset[int]) -> frozenset[int] | None:
        """`kept` without what is there at the peak and cheapest, until it fits."""
        while not self.fits(kept):
            there = [each for each in self.outcome(kept).at_peak if each in kept]
            if not there:
                return None
            over = self.outcome(kept).peak_bytes - self.budget
            gone: set[int] = set()
            for each in sorted(there, key=self._worth):
                gone.add(each)
                over -= self.graph.storages[each].nbytes
                if over <= 0:
                    break
            kept = kept - gone
        return self.filled(kept)

    def exchanged(self, kept: frozenset[int], rounds: int = 60) -> frozenset[int]:
        """Drop one, fill up again, and stay with it where that is better."""
        candidates = sorted(
            kept, key=lambda each: (self._worth(each), -self.graph.storages[each].nbytes)
        )
        for each in candidates[:rounds]:
            other = self.filled(kept - {each})
            if self.cost(other) < self.cost(kept):
                kept = other
        return kept
