"""What playing a step again and again looks up: worked out once for a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ebbtide.plan.graph import StepGraph


@dataclass(frozen=True, slots=True)
class Use:
    """Backward asks for a storage.

    Attributes:
        event: when.
        storage: what.
        position: how far the forward pass was when it was saved, in calls. Backward comes
            from high positions to low ones.
        over: the event at which this reader has done with it.
    """

    event: int
    storage: int
    position: int
    over: int


class Index:
    """Tables of a graph.

    Attributes:
        alloc, free: events at which the program gets and lets go of each storage; after the
            last event where it never does.
        release: the event at which backward has done with it; -1 where it is not saved.
        nbytes: of each storage.
        uses: in their order.
        readers: the uses of each storage.
        sources: of each call, the storages that it reads and that calls made.
        makes: of each call.
        changes: of each call, the storages that it makes or writes.
        backwards: `sources` and `changes` of the calls that have both, from the last one on.
        made_by: of each storage, its calls.
        seconds, flops, scratch: of each call.
        touched: by event, bytes beside the storages: scratch of the call.
        program: by event, bytes that the program itself holds, before what it frees there.
        other: saved storages that no call made.
        fixed: storages that are always kept, for they cannot be made again.
    """

    def __init__(self, graph: StepGraph) -> None:
        from ebbtide.plan.graph import Step  # the graph owns its index

        count, end = len(graph.storages), len(graph.events)
        self.end = end
        self.nbytes = [each.nbytes for each in graph.storages]
        self.made_by = [each.calls for each in graph.storages]
        self.alloc, self.free = [end] * count, [end] * count
        self.release = [-1] * count
        self.touched: NDArray[np.int64] = np.zeros(end, dtype=np.int64)
        self.looks: NDArray[np.bool_] = np.zeros(end, dtype=np.bool_)
        saves: dict[int, list[int]] = {}
        uses: list[tuple[int, int]] = []
        releases: dict[int, list[int]] = {}
        position = 0
        for i, (kind, arg) in enumerate(graph.events):
            if kind == Step.ALLOC:
                self.alloc[arg] = i
                self.looks[i] = True
            elif kind == Step.FREE:
                self.free[arg] = i
            elif kind == Step.CALL:
                position = arg + 1
                self.touched[i] = graph.calls[arg].scratch_bytes
                self.looks[i] = True
            elif kind == Step.SAVE:
                saves.setdefault(arg, []).append(position)
            elif kind == Step.USE:
                uses.append((i, arg))
            else:
                releases.setdefault(arg, []).append(i)
        for number in saves:
            self.release[number] = releases[number][-1] if number in releases else end - 1
        self.uses = _uses(uses, saves, releases, self.release)
        self.readers: dict[int, list[Use]] = {}
        for use in self.uses:
            self.readers.setdefault(use.storage, []).append(use)
        self.sources = [
            tuple({each.storage for each in call.sources if self.made_by[each.storage]})
            for call in graph.calls
        ]
        self.makes = [call.makes for call in graph.calls]
        self.changes = [(*call.makes, *call.writes) for call in graph.calls]
        self.backwards = [
            pair
            for pair in zip(reversed(self.sources), reversed(self.changes), strict=True)
            if pair[0] and pair[1]
        ]
        self.seconds = [call.seconds for call in graph.calls]
        self.flops = [call.flops for call in graph.calls]
        self.scratch = [call.scratch_bytes for call in graph.calls]
        repeatable = [call.repeatable for call in graph.calls]
        self.fixed = frozenset(
            number
            for number, calls in enumerate(self.made_by)
            if calls and not all(repeatable[each] for each in calls)
        )
        self.other = [
            each for each, calls in enumerate(self.made_by) if not calls and self.release[each] >= 0
        ]
        self.program = self.held(zip(self.alloc, self.free, self.nbytes, strict=True))
        self.program += graph.base_bytes

    def held(self, spans: object) -> NDArray[np.int64]:
        """Bytes by event, of spans (first event, last event, bytes); both ends are included."""
        change: NDArray[np.int64] = np.zeros(self.end + 2, dtype=np.int64)
        table = np.array(list(spans), dtype=np.int64).reshape(-1, 3)  # type: ignore[call-overload]
        np.add.at(change, np.minimum(table[:, 0], self.end), table[:, 2])
        np.subtract.at(change, np.minimum(table[:, 1], self.end) + 1, table[:, 2])
        sums: NDArray[np.int64] = np.cumsum(change)[: self.end]
        return sums


def _uses(
    uses: list[tuple[int, int]],
    saves: dict[int, list[int]],
    releases: dict[int, list[int]],
    last: list[int],
) -> list[Use]:
    """Each use with its reader: backward comes to the readers from the last to the first."""
    found: list[Use] = []
    times: dict[int, int] = {}
    for event, storage in uses:
        if storage not in saves:
            continue
        nth = times.get(storage, 0)
        times[storage] = nth + 1
        positions = saves[storage]
        position = positions[max(len(positions) - 1 - nth, 0)]
        over = next((each for each in releases.get(storage, ()) if each > event), last[storage])
        found.append(Use(event, storage, position, over))
    return found
