"""What a choice comes to: the peak, and what is computed again.

It follows `ebbtide.train` to the letter. A storage that is not kept is dropped when the
program lets go of it. When backward asks for a saved one that is not there, the operations
that make it from what is there are called again, in their order. Of what they make:

* a saved storage stays until backward has done with it;
* one with a *position* (`holds`) stays only if what backward asks for was saved there or
  earlier in the forward pass, and then until nothing can be made from it any more, whether
  it is saved or not; before that it passes: it goes at its last reader in the rebuilding, or,
  being what was asked for, with the reader that asked;
* all else goes at its last reader in the rebuilding.

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
    """

    peak_bytes: int
    peak_event: int
    seconds: float
    flops: int
    calls: int
    at_peak: frozenset[int] = field(repr=False)
    held_at_peak: frozenset[int] = field(repr=False, default=frozenset())


def simulate(graph: StepGraph, kept: Set[int], holds: Mapping[int, int] = _NONE) -> Outcome:
    """Play the step.

    Args:
        graph: the step.
        kept: storages held from the forward pass on, for as long as backward may need them.
            What cannot be made again (`StepGraph.fixed`) always is.
        holds: by dropped storage, its position: how far the forward pass had come, in calls.
    """
    return _Run(graph, kept, holds).play()


class _Run:
    """Where storages are, as far as backward has come."""

    def __init__(self, graph: StepGraph, kept: Set[int], holds: Mapping[int, int]) -> None:
        self.graph, self.holds = graph, holds
        self.index: Index = graph.index
        self.kept = kept | self.index.fixed if self.index.fixed else kept
        self.needed = self._needed()
        self.until = self._until()
        self.spans: list[tuple[int, int, int]] = []
        self.held: list[tuple[int, int, int]] = []  # storage, after which event, until which
        self.peaks: list[tuple[int, int]] = []
        self.calls: list[int] = []

    def _needed(self) -> list[int]:
        """By storage, the last event at which a dropped one is released that is made from it."""
        index, kept, release = self.index, self.kept, self.index.release
        needed = [NEVER] * len(index.nbytes)
        for call in range(len(index.sources) - 1, -1, -1):
            sources = index.sources[call]
            if not sources:
                continue
            latest = NEVER
            for each in index.changes[call]:
                if each not in kept:
                    latest = max(latest, release[each], needed[each])
            if latest >= 0:
                for each in sources:
                    if needed[each] < latest:
                        needed[each] = latest
        return needed

    def _until(self) -> list[int]:
        """By storage, the event after which it is gone, as the forward pass leaves it."""
        index = self.index
        until = list(index.free)
        for each, calls in enumerate(index.made_by):
            if not calls and index.release[each] >= 0:
                until[each] = max(until[each], index.release[each])
        for each in self.kept:
            until[each] = max(until[each], index.release[each], self.needed[each])
        return until

    def play(self) -> Outcome:
        """All uses."""
        index, until = self.index, self.until
        program = [
            (free + 1, until[each], index.nbytes[each])
            for each, free in enumerate(index.free)
            if until[each] > free
        ]
        kept_until = {each: until[each] for each in self.kept}
        for use in index.uses:
            if until[use.storage] < use.event:
                self._rebuild(use)
        held = index.program + index.held([*program, *self.spans])
        return self._outcome(held, kept_until)

    def _outcome(self, held: np.ndarray, kept_until: dict[int, int]) -> Outcome:
        index = self.index
        seen = np.where(index.looks, held + index.touched, self.graph.base_bytes)
        event = int(seen.argmax()) if len(seen) else 0
        peak = int(seen[event]) if len(seen) else self.graph.base_bytes
        for at, more in self.peaks:
            if held[at] + more > peak:
                peak, event = int(held[at]) + more, at
        return Outcome(
            peak,
            event,
            sum(index.seconds[each] for each in self.calls),
            sum(index.flops[each] for each in self.calls),
            len(self.calls),
            frozenset(e for e, to in kept_until.items() if index.alloc[e] <= event <= to),
            frozenset(each for each, after, to in self.held if after < event <= to),
        )

    def _rebuild(self, use: Use) -> None:
        index, until, now = self.index, self.until, use.event
        calls = self._recipe(use.storage, now)
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
                    if self._end(each, use) < 0:
                        made.discard(each)
                        current -= index.nbytes[each]
        self.peaks.append((now, most))
        for each in made:
            end = self._end(each, use)
            until[each] = end if end >= 0 else use.over
            self.held.append((each, now, until[each]))
            self.spans.append((now + 1, until[each], index.nbytes[each]))

    def _end(self, storage: int, use: Use) -> int:
        """The event up to which `storage`, made for `use`, stays; -1 where it passes."""
        release = self.index.release[storage]
        position = self.holds.get(storage)
        if position is None:
            return release if release >= use.event else NEVER
        if use.position > position:
            return NEVER
        end = max(release, self.needed[storage])
        return end if end >= use.event else NEVER

    def _recipe(self, wanted: int, now: int) -> list[int]:
        """The calls that make `wanted` from what is there, in order."""
        made_by, sources, until = self.index.made_by, self.index.sources, self.until
        calls: set[int] = set()
        waiting, seen = [wanted], {wanted}
        while waiting:
            for number in made_by[waiting.pop()]:
                if number not in calls:
                    calls.add(number)
                    for each in sources[number]:
                        if each not in seen and until[each] < now:
                            seen.add(each)
                            waiting.append(each)
        return sorted(calls)
