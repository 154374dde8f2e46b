"""Improve a choice step by step: shorten what is in the way at the peak, lengthen what pays.

A choice says of every storage from when on it is held: its *level*. `KEPT` is from the forward
pass on; a position is from when backward has come down to it; `NEVER` is only for a reader.
A higher level never computes more again and never takes less memory, but for what is
made again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ebbtide.plan.graph import StepGraph
from ebbtide.plan.simulate import NEVER, Outcome, simulate

KEPT = 1 << 40
Levels = Mapping[int, int]
Cost = Callable[[Outcome], float]


@dataclass(slots=True)
class Search:
    """Choices played so far, each once.

    Args:
        graph: the step.
        budget: for the peak, in bytes.
        cost: what is to be small.
        left: how many more choices may be played.
    """

    graph: StepGraph
    budget: int
    cost: Cost
    left: int
    known: dict[frozenset[tuple[int, int]], Outcome] = field(default_factory=dict)

    def play(self, levels: Levels) -> Outcome:
        """What `levels` come to."""
        key = frozenset(levels.items())
        found = self.known.get(key)
        if found is None:
            self.left -= 1
            found = self.known[key] = simulate(self.graph, *split(levels))
        return found

    def fits(self, levels: Levels) -> bool:
        """Whether the peak is within the budget."""
        return self.play(levels).peak_bytes <= self.budget

    def price(self, levels: Levels) -> float:
        """The cost of `levels`."""
        return self.cost(self.play(levels))

    def better(self, levels: Levels, than: Levels | None) -> bool:
        """Whether `levels` fit and cost less."""
        return self.fits(levels) and (than is None or self.price(levels) < self.price(than))


def split(levels: Levels) -> tuple[frozenset[int], dict[int, int]]:
    """The kept storages, and the positions of the others."""
    kept = frozenset(each for each, level in levels.items() if level >= KEPT)
    return kept, {each: level for each, level in levels.items() if level < KEPT}


class Levelling:
    """The moves: one storage to another level.

    Args:
        search: where choices are played.
        storages: those that may be moved.
    """

    def __init__(self, search: Search, storages: Iterable[int]) -> None:
        self.search = search
        self.index = search.graph.index
        self.storages = sorted(storages)
        self.levels = self._levels()

    def _levels(self) -> dict[int, list[int]]:
        """By storage, the levels that make a difference, from low to high."""
        index = self.index
        above: list[set[int]] = [set() for _ in index.nbytes]
        for use in index.uses:
            above[use.storage].add(use.position)
        for call in range(len(index.sources) - 1, -1, -1):
            for each in index.sources[call]:
                for made in index.changes[call]:
                    if made != each:
                        above[each] |= above[made]
        return {each: [NEVER, *sorted(above[each]), KEPT] for each in self.storages}

    def below(self, storage: int, event: int) -> int:
        """The highest level at which `storage` is not held at `event` yet."""
        after = [use.position for use in self.index.uses if use.event >= event]
        most = max(after, default=NEVER)
        return max(level for level in self.levels[storage] if level <= most or level == NEVER)

    def lowered(self, levels: dict[int, int]) -> dict[int, int] | None:
        """`levels` lowered until they fit, each time where it costs least for its bytes."""
        search = self.search
        while not search.fits(levels) and search.left > 0:
            now = search.play(levels)
            over = now.peak_bytes - search.budget
            best, least = None, float("inf")
            for each in sorted(now.at_peak | now.held_at_peak):
                if each not in self.levels:
                    continue
                low = self.below(each, now.peak_event)
                if low >= levels.get(each, KEPT):
                    continue
                other = {**levels, each: low}
                then = search.play(other)
                if then.peak_bytes > now.peak_bytes:
                    continue
                relief = min(over, self.index.nbytes[each])
                price = (search.cost(then) - search.cost(now)) / max(relief, 1)
                if price < least:
                    best, least = other, price
            if best is None:
                return None
            levels = best
        return levels if search.fits(levels) else None

    def raised(self, levels: dict[int, int]) -> dict[int, int]:
        """`levels` raised as long as something fits that costs less: the best first."""
        search = self.search
        while search.left > 0:
            best = levels
            for each in self.storages:
                at = levels.get(each, NEVER)
                for level in reversed(self.levels[each]):
                    if level <= at:
                        break
                    other = {**levels, each: level}
                    if search.fits(other):
                        if search.price(other) < search.price(best):
                            best = other
                        break
            if best is levels:
                return levels
            levels = best
        return levels

    def improved(self, levels: dict[int, int]) -> dict[int, int]:
        """Move one storage, mend the rest, and stay with it where that is better."""
        search = self.search
        moved = True
        while moved and search.left > 0:
            moved = False
            for each in self.storages:
                for level in self.levels[each]:
                    if search.left <= 0 or level == levels.get(each, NEVER):
                        continue
                    other = self._mended({**levels, each: level}, each)
                    if other is not None and search.better(other, levels):
                        levels, moved = other, True
        return levels

    def _mended(self, levels: dict[int, int], fixed: int) -> dict[int, int] | None:
        """`levels` made to fit with `fixed` where it is, then raised again."""
        kept = self.levels.pop(fixed)
        try:
            found = self.lowered(levels)
            if found is None:
                return None
            self.storages.remove(fixed)
            try:
                return self.raised(found)
            finally:
                self.storages.append(fixed)
                self.storages.sort()
        finally:
            self.levels[fixed] = kept
