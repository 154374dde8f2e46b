"""The rules of `ebbtide.plan.simulate`, played event by event with nothing worked out ahead.

Which reading of a storage is its last is only known at the end, so the step is played until
the answer of one round is what the next one assumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ebbtide.plan.graph import Step, StepGraph


class Player:
    """One round.

    Args:
        graph, kept, holds: as `simulate` has them.
        ends: by storage, the event after which it may go, apart from readers that wait.
    """

    def __init__(
        self,
        graph: StepGraph,
        kept: Set[int],
        holds: Mapping[int, int],
        ends: Mapping[int, int],
    ) -> None:
        self.graph, self.kept, self.holds, self.ends = graph, kept, holds, ends
        self.program: set[int] = set()
        self.stays: set[int] = set()  # kept, or made again and held
        self.lent: dict[int, int] = {}
        self.waits = {each: 0 for each in graph.saved}
        self.peak = graph.base_bytes
        self.calls: list[int] = []
        self.reads: dict[int, list[tuple[int, int]]] = {}

    def play(self) -> None:
        positions: dict[int, list[int]] = {}
        position = 0
        for kind, arg in self.graph.events:
            position = arg + 1 if kind == Step.CALL else position
            if kind == Step.SAVE:
                positions.setdefault(arg, []).append(position)
                self.waits[arg] += 1
        for now, (kind, arg) in enumerate(self.graph.events):
            if kind == Step.ALLOC:
                self.program.add(arg)
                if arg in self.kept:
                    self.stays.add(arg)
                self._look(0)
            elif kind == Step.FREE:
                self.program.discard(arg)
            elif kind == Step.CALL:
                self._look(self.graph.calls[arg].scratch_bytes)
            elif kind == Step.USE:
                at = positions[arg].pop()
                if arg not in self._there():
                    self._rebuild(arg, at, now)
            elif kind == Step.RELEASE:
                self.waits[arg] -= 1
                self.lent.pop(arg, None)
            for each in list(self.stays):
                if not self.waits.get(each, 0) and now >= self.ends.get(each, -1):
                    if each not in self.program or each not in self.kept:
                        self.stays.discard(each)

    def _there(self) -> set[int]:
        return self.program | self.stays | set(self.lent)

    def _look(self, more: int) -> None:
        there = sum(self.graph.storages[each].nbytes for each in self._there())
        self.peak = max(self.peak, self.graph.base_bytes + there + more)

    def _rebuild(self, wanted: int, position: int, now: int) -> None:
        storages, calls = self.graph.storages, self.graph.calls
        before = self._there()

        def needs(storage: int) -> set[int]:
            found = set(storages[storage].calls)
            for call in storages[storage].calls:
                for source in calls[call].sources:
                    if source.storage in before:
                        if source.storage in self.stays:
                            read.add(source.storage)
                    elif source.storage != storage:
                        found |= needs(source.storage)
            return found

        read: set[int] = set()
        recipe = sorted(needs(wanted))
        made: set[int] = set()
        for i, call in enumerate(recipe):
            self._count(made, calls[call].scratch_bytes)
            made.update(set(calls[call].makes) - before)
            self._count(made, 0)
            later = {s.storage for one in recipe[i + 1 :] for s in calls[one].sources}
            for each in list(made):
                finished = storages[each].calls[-1] <= call
                if finished and each != wanted and each not in later:
                    if not self._held(each, position):
                        made.discard(each)
        for each in made:
            if self._held(each, position):
                self.stays.add(each)
            else:
                self.lent[each] = now
        for each in read:
            self.reads.setdefault(each, []).append((now, position))
        self.calls += recipe

    def _count(self, made: set[int], more: int) -> None:
        self._look(sum(self.graph.storages[each].nbytes for each in made) + more)

    def _held(self, storage: int, position: int) -> bool:
        if storage in self.holds:
            return position <= self.holds[storage]
        return self.waits.get(storage, 0) > 0


def play(graph: StepGraph, kept: Set[int], holds: Mapping[int, int]) -> Player:
    """The round in which every storage goes after its last reading."""
    forever = dict.fromkeys(range(len(graph.storages)), len(graph.events))
    first = Player(graph, kept, holds, forever)
    first.play()
    ends = {each: uses[-1][0] for each, uses in first.reads.items()}
    second = Player(graph, kept, holds, ends)
    second.play()
    return second
