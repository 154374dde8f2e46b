"""Improve a choice step by step: shorten what is in the way at the peak, lengthen what pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ebbtide.plan.graph import StepGraph
from ebbtide.plan.levels import HELD, LENT, Levels, choices, parts, play
from ebbtide.plan.simulate import Outcome

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
            found = self.known[key] = play(self.graph, levels)
        return found

    def fits(self, levels: Levels) -> bool:
        """Whether the peak is within the budget."""
        return self.play(levels).peak_bytes <= self.budget

    def price(self, levels: Levels) -> float:
        """The cost of `levels`."""
        return self.cost(self.play(levels))

    def better(self, levels: Levels, than: Levels | None) -> bool:
        """Whether `levels` fit and cost less."""
        return self.fits(levels) and (
            than is None or self.price(levels) < self.price(than) * (1 - 1e-9)
        )


class Stepwise:
    """One storage at a time to another level: for steps of some dozens of storages."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.index = search.graph.index
        self.choices = choices(search.graph)
        self.held: set[int] = set()  # storages that are not moved

    def at(self, levels: Levels, storage: int) -> int:
        """The level of a storage; HELD where none is given and it is saved."""
        known = levels.get(storage)
        if known is not None:
            return known
        return HELD if self.index.release[storage] >= 0 else LENT

    def shorter(self, storage: int, event: int, now: int) -> int | None:
        """The highest level below `now` at which it is not held at `event`."""
        later = [use.position for use in self.index.uses if use.event >= event]
        most = max(later, default=-1)
        own = [u.position for u in self.index.readers.get(storage, ()) if u.over >= event]
        mine = max(own, default=-1)
        for level in reversed(self.choices[storage]):
            keeps, holds = parts(level)
            if level < now and holds <= most and (keeps is None or keeps > mine):
                return level
        return None

    def lowered(self, levels: dict[int, int]) -> dict[int, int] | None:
        """`levels` lowered until they fit, each time where it costs least for its bytes."""
        search = self.search
        while not search.fits(levels) and search.left > 0:
            now = search.play(levels)
            over = now.peak_bytes - search.budget
            best, least = None, float("inf")
            for each in sorted((now.at_peak | now.held_at_peak) - self.held):
                level = None
                if each in self.choices:
                    level = self.shorter(each, now.peak_event, self.at(levels, each))
                if level is None:
                    continue
                other = {**levels, each: level}
                then = search.play(other)
                if then.peak_bytes > now.peak_bytes:
                    continue
                relief = max(min(over, self.index.nbytes[each]), 1)
                price = (search.cost(then) - search.cost(now)) / relief
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
            for each, steps in self.choices.items():
                if each in self.held:
                    continue
                now = self.at(levels, each)
                for level in reversed(steps):
                    if level <= now:
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
            for each, steps in self.choices.items():
                for level in steps:
                    if search.left <= 0 or level == self.at(levels, each):
                        continue
                    self.held = {each}
                    other = self.lowered({**levels, each: level})
                    if other is not None:
                        other = self.raised(other)
                    self.held = set()
                    if other is not None and search.better(other, levels):
                        levels, moved = other, True
        return levels
