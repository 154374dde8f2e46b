"""What a choice of kept storages comes to: the peak, and what is computed again.

It follows `ebbtide.train` to the letter: a saved storage that is not kept is dropped; at its
first use in backward the operations from what is there are called again, in their order; of
what they make, dropped storages that backward still waits for stay until it has done with
them, and the rest goes at its last reader.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from ebbtide.plan.graph import Step, StepGraph


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one step.

    Attributes:
        peak_bytes: the most that is allocated at once.
        peak_event: the event at which that is, as a number of `StepGraph.events`.
        seconds, flops: of what is computed again.
        calls: how many operations are called again.
        at_peak: the kept storages that are there at the peak.
    """

    peak_bytes: int
    peak_event: int
    seconds: float
    flops: int
    calls: int
    at_peak: frozenset[int] = field(repr=False)


def simulate(graph: StepGraph, kept: Set[int]) -> Outcome:
    """Play the events with the storages of `kept` held for as long as backward may need them."""
    return _Run(graph, kept).play()


class _Run:
    """Bytes held, event by event."""

    def __init__(self, graph: StepGraph, kept: Set[int]) -> None:
        self.graph = graph
        self.kept = kept
        self.going = _going(graph, kept)
        self.there: set[int] = set()
        self.released = [False] * len(graph.storages)
        self.current = self.peak = graph.base_bytes
        self.peak_event = self.now = 0
        self.at_peak: frozenset[int] = frozenset()
        self.seconds = 0.0
        self.flops = self.count = 0

    def play(self) -> Outcome:
        """All events."""
        graph, going = self.graph, self.going
        for self.now, (kind, arg) in enumerate(graph.events):
            if kind == Step.ALLOC:
                self._add(arg)
            elif kind == Step.USE and arg not in self.there:
                self._rebuild(arg)
            elif kind == Step.CALL:
                self._touch(graph.calls[arg].scratch_bytes)
            for storage in going.get(self.now, ()):
                self._remove(storage)
                if graph.saved.get(storage) == self.now:
                    self.released[storage] = True
        return Outcome(
            self.peak, self.peak_event, self.seconds, self.flops, self.count, self.at_peak
        )

    def _add(self, storage: int) -> None:
        self.there.add(storage)
        self.current += self.graph.storages[storage].nbytes
        self._touch(0)

    def _remove(self, storage: int) -> None:
        if storage in self.there:
            self.there.discard(storage)
            self.current -= self.graph.storages[storage].nbytes

    def _touch(self, more: int) -> None:
        if self.current + more > self.peak:
            self.peak, self.peak_event = self.current + more, self.now
            self.at_peak = frozenset(self.there & self.kept)

    def _rebuild(self, wanted: int) -> None:
        graph = self.graph
        calls = self._recipe(wanted)
        last = {s.storage: number for number in calls for s in graph.calls[number].sources}
        made: set[int] = set()
        for number in calls:
            call = graph.calls[number]
            self._touch(call.scratch_bytes)
            self.seconds += call.seconds
            self.flops += call.flops
            self.count += 1
            fresh = [each for each in call.makes if each not in self.there]
            for each in fresh:
                self._add(each)
                made.add(each)
            reads = {source.storage for source in call.sources}
            for each in (*fresh, *reads):
                over = last.get(each, -1) <= number and each in made and each != wanted
                if over and not self._waited(each):
                    made.discard(each)
                    self._remove(each)

    def _waited(self, storage: int) -> bool:
        """Whether backward still needs a storage that was dropped."""
        saved = storage in self.graph.saved
        return saved and storage not in self.kept and not self.released[storage]

    def _recipe(self, wanted: int) -> list[int]:
        """The calls that make `wanted` from what is there, in order."""
        graph = self.graph
        calls: set[int] = set()
        waiting, seen = [wanted], {wanted}
        while waiting:
            storage = waiting.pop()
            for number in graph.storages[storage].calls:
                if number in calls:
                    continue
                calls.add(number)
                for source in graph.calls[number].sources:
                    each = source.storage
                    if each in seen or each in self.there or not graph.storages[each].calls:
                        continue
                    seen.add(each)
                    waiting.append(each)
        return sorted(calls)


def _going(graph: StepGraph, kept: Set[int]) -> dict[int, list[int]]:
    """By event, the storages that are gone after it if they are there.

    A dropped one goes twice: when the program lets go of it, and when backward has done
    with what was made again.
    """
    ends: list[tuple[int, int]] = []
    reads = _last_reads(graph, kept)
    for number in range(len(graph.storages)):
        free, release = graph.frees.get(number), graph.saved.get(number)
        stays = number in kept or not graph.storages[number].calls
        if stays or release is None:
            known = [end for end in (free, release, reads.get(number)) if end is not None]
            if known and free is not None:
                ends.append((max(known), number))
            continue
        ends.append((release, number))
        if free is not None and free < release:
            ends.append((free, number))
    going: dict[int, list[int]] = {}
    for end, number in ends:
        going.setdefault(end, []).append(number)
    return going


def _last_reads(graph: StepGraph, kept: Set[int]) -> dict[int, int]:
    """By kept storage, the last release of a dropped one that would be made from it."""
    needs = [0] * len(graph.storages)  # a bit for each kept storage that one is made from
    for call in graph.calls:
        mask = 0
        for source in call.sources:
            each = source.storage
            mask |= 1 << each if each in kept else needs[each]
        for made in (*call.makes, *call.writes):
            needs[made] |= mask
    reads: dict[int, int] = {}
    for number, release in graph.saved.items():
        mask = 0 if number in kept else needs[number]
        while mask:
            low = mask & -mask
            each = low.bit_length() - 1
            reads[each] = max(reads.get(each, -1), release)
            mask ^= low
    return reads
