"""What a choice comes to: the peak, and what is computed again.

It follows `ebbtide.train` to the letter. A *reader* is an operation of the forward pass that
saved a storage for backward; its *position* is how many operations had been called then, and
backward comes to the readers from the last position to the first.

A storage that is not kept is dropped when the program lets go of it. When backward comes to a
reader of one that is not there, the operations that make it from what is there are called
again, in their order. What they make goes at its last use in that rebuilding, or with the
reader if it is what the reader asked for, unless it is held: a saved storage is, for as long as
readers wait for it, and every storage for which a position is given is from there on.

What is kept or held goes as soon as no reader waits for it and it has been read for the last
time to make another; the positions of these last times (`Outcome.lasts`) are part of the plan.
Bytes are counted at allocations, with the scratch of an operation before what it makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ebbtide.plan.graph import StepGraph
from ebbtide.plan.index import Index, Use

NEVER = -1
"""As the position of a storage: it always passes."""
_NONE: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one step.

    Attributes:
        peak_bytes: the most that is allocated at once.
        peak_event: the event at which that is, as a number of `StepGraph.events`.
        seconds, flops: of what is computed again.
        calls: how many operations are called again.
        at_peak: the kept storages that are there at the peak.
        held_at_peak: the storages made again that are there before the event of the peak.
        lasts: by storage kept or held, the position of the reader for whom it is read the last
            time; `NEVER` where that cannot be told, and it stays while a recipe leads to it.
    """

    peak_bytes: int
    peak_event: int
    seconds: float
    flops: int
    calls: int
    at_peak: frozenset[int] = field(repr=False)
    held_at_peak: frozenset[int] = field(repr=False, default=frozenset())
    lasts: Mapping[int, int] = field(repr=False, default_factory=dict)


def simulate(
    graph: StepGraph,
    kept: Set[int],
    holds: Mapping[int, int] = _NONE,
    keeps: Mapping[int, int] = _NONE,
) -> Outcome:
    """Play the step.

    Args:
        graph: the step.
        kept: storages held from the forward pass on, for as long as backward may need them.
            What cannot be made again (`StepGraph.fixed`) always is.
        holds: by dropped storage, a position: made again for a reader there or before it, it is
            held; made for one behind it, it is not.
        keeps: by dropped storage, a position: for readers there or behind it, which come first in
            backward, it is kept after all.
    """
    return _Run(graph, kept, holds, keeps).play()


class _Run:
    """Where storages are, as far as backward has come."""

    def __init__(
        self,
        graph: StepGraph,
        kept: Set[int],
        holds: Mapping[int, int],
        keeps: Mapping[int, int],
    ) -> None:
        self.graph, self.holds = graph, holds
        self.index: Index = graph.index
        self.kept = kept | self.index.fixed if self.index.fixed else kept
        self.parts: dict[int, int] = {}  # by storage kept for some readers, its end as such
        self.until = self._until(keeps)
        self.held: dict[int, int] = {}  # by storage made again, the event from which it stays
        self.lent: list[tuple[int, int, int]] = []
        self.reads: dict[int, list[Use]] = {}
        self.peaks: list[tuple[int, int]] = []
        self.calls: list[int] = []

    def _until(self, keeps: Mapping[int, int]) -> list[int]:
        """By storage, the event after which it is surely gone."""
        index = self.index
        until = list(index.free)
        for each in index.other:
            until[each] = max(until[each], index.release[each])
        for each in self.kept:
            until[each] = index.end
        for each, position in keeps.items():
            over = [use.over for use in index.readers.get(each, ()) if use.position >= position]
            if over and each not in self.kept:
                self.parts[each] = until[each] = max(until[each], *over)
        return until

    def play(self) -> Outcome:
        """All uses."""
        until = self.until
        for use in self.index.uses:
            if until[use.storage] < use.event:
                self._rebuild(use)
        return self._outcome()

    def _outcome(self) -> Outcome:
        index, until = self.index, self.until
        needed, spans = self._needed(), []
        lasts = {each: self._last(uses) for each, uses in self.reads.items()}
        for each in self.kept:
            until[each] = max(index.free[each], self._end(each, needed[each], -1))
        for each, after in self.held.items():
            until[each] = self._end(each, needed[each], after)
            spans.append((after + 1, until[each], index.nbytes[each]))
        for each in (*self.kept, *index.other):
            if until[each] > index.free[each]:
                spans.append((index.free[each] + 1, until[each], index.nbytes[each]))
        spans += [
            (index.free[each] + 1, end, index.nbytes[each])
            for each, end in self.parts.items()
            if end > index.free[each]
        ]
        held = index.program + index.held([*spans, *self.lent])
        seen = np.where(index.looks, held + index.touched, self.graph.base_bytes)
        event = int(seen.argmax()) if len(seen) else 0
        peak = int(seen[event]) if len(seen) else self.graph.base_bytes
        for at, more in self.peaks:
            if held[at] + more > peak:
                peak, event = int(held[at]) + more, at
        at_peak = {e for e in self.kept if index.alloc[e] <= event <= until[e]}
        at_peak.update(e for e, end in self.parts.items() if index.alloc[e] <= event <= end)
        return Outcome(
            peak,
            event,
            sum(index.seconds[each] for each in self.calls),
            sum(index.flops[each] for each in self.calls),
            len(self.calls),
            frozenset(at_peak),
            frozenset(e for e, after in self.held.items() if after < event <= until[e]),
            lasts,
        )

    def _needed(self) -> list[int]:
        """By storage, the last event at which a dropped one is released that is made from it."""
        kept, release = self.kept, self.index.release
        needed = [NEVER] * len(release)
        for sources, changes in self.index.backwards:
            latest = NEVER
            for each in changes:
                if each not in kept:
                    latest = max(latest, release[each], needed[each])
            if latest >= 0:
                for each in sources:
                    if needed[each] < latest:
                        needed[each] = latest
        return needed

    def _last(self, uses: list[Use]) -> int:
        """The position of the last of the readers; NEVER where an earlier one looks like it."""
        last = uses[-1].position
        return NEVER if any(each.position <= last for each in uses[:-1]) else last

    def _end(self, storage: int, needed: int, after: int) -> int:
        """The event after which a storage goes that is held from `after` on.

        That is when it is released and has been read for the last time. Where the last time
        cannot be told it stays for as long as there are recipes that lead to it.
        """
        release = self.index.release[storage]
        uses = self.reads.get(storage)
        if uses:
            known = self._last(uses) != NEVER
            return max(release, uses[-1].event if known else needed)
        return release if release >= after >= 0 else max(release, needed, after)

    def _rebuild(self, use: Use) -> None:
        index, until, now = self.index, self.until, use.event
        calls = self._recipe(use)
        self.calls += calls
        last = {each: number for number in calls for each in index.sources[number]}
        made: set[int] = set()
        current = most = 0
        for number in calls:
            most = max(most, current + index.scratch[number])
            fresh = [each for each in index.makes[number] if until[each] < now]
            for each in fresh:
                if each not in made:
                    made.add(each)
                    current += index.nbytes[each]
            most = max(most, current)
            for each in (*fresh, *index.sources[number]):
                if each in made and last.get(each, -1) <= number and each != use.storage:
                    if not self._stays(each, use):
                        made.discard(each)
                        current -= index.nbytes[each]
        self.peaks.append((now, most))
        for each in made:
            if self._stays(each, use):
                until[each] = index.end
                self.held[each] = now
            else:
                until[each] = use.over
                self.lent.append((now + 1, use.over, index.nbytes[each]))

    def _stays(self, storage: int, use: Use) -> bool:
        """Whether `storage`, made for `use`, is held."""
        position = self.holds.get(storage)
        if position is None:
            return self.index.release[storage] >= use.event
        return use.position <= position

    def _recipe(self, use: Use) -> list[int]:
        """The calls that make what is asked for from what is there, in order."""
        made_by, sources, until = self.index.made_by, self.index.sources, self.until
        now = use.event
        calls: set[int] = set()
        waiting, seen = [use.storage], {use.storage}
        while waiting:
            for number in made_by[waiting.pop()]:
                if number not in calls:
                    calls.add(number)
                    for each in sources[number]:
                        if each not in seen:
                            seen.add(each)
                            if until[each] < now:
                                waiting.append(each)
                            elif each in self.held or each in self.kept:
                                self.reads.setdefault(each, []).append(use)
        return sorted(calls)
