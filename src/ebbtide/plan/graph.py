"""One training step as the planner sees it: storages over time, and how each can be made again.

The events are those of a step in which nothing was saved for backward: a storage is freed as
soon as the program itself lets go of it. What saving adds is said apart, by ``SAVE``, ``USE``
and ``RELEASE``, so that every way to keep, drop or move what is saved can be worked out from
the one graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from ebbtide.plan.index import Index


class Step(IntEnum):
    """What happened; the argument is a number of a storage or an operation.

    * ``ALLOC``, ``FREE``: a storage begins, and ends as far as the program goes.
    * ``CALL``: an operation of the forward pass is called; what it allocates follows.
    * ``SAVE``, ``RELEASE``: autograd begins and ends to need a storage.
    * ``USE``: backward reads it.
    """

    ALLOC = 0
    FREE = 1
    CALL = 2
    SAVE = 3
    USE = 4
    RELEASE = 5


@dataclass(frozen=True, slots=True)
class Source:
    """What an operation reads: a storage at one of its versions."""

    storage: int
    version: int


@dataclass(frozen=True, slots=True)
class Call:
    """An operation of the forward pass.

    Attributes:
        name: such as ``"aten.mm.default"``.
        seconds: predicted, on the GPU of the graph.
        flops: of matrix products and convolutions.
        sources: what it reads.
        makes: storages that it makes.
        writes: storages of the step that it writes in place.
        scratch_bytes: the most that it holds beside what it makes.
        repeatable: whether it can be called again.
        module: the path of the module that called it.
    """

    name: str
    seconds: float
    flops: int
    sources: tuple[Source, ...]
    makes: tuple[int, ...]
    writes: tuple[int, ...]
    scratch_bytes: int
    repeatable: bool
    module: str = ""


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory of the step.

    Attributes:
        nbytes: as the allocator rounds it.
        place: operation and output that made it, in the forward pass; None for others.
        calls: the operations that made it what it is, one a version; empty where it
            was there before the step or belongs to backward.
    """

    nbytes: int
    place: tuple[int, int] | None
    calls: tuple[int, ...]


@dataclass(frozen=True)
class StepGraph:
    """A step: `base_bytes` that are there throughout, and everything that comes and goes."""

    base_bytes: int
    storages: tuple[Storage, ...]
    calls: tuple[Call, ...]
    events: tuple[tuple[int, int], ...]
    seconds: float

    @cached_property
    def saved(self) -> dict[int, int]:
        """Storages that autograd saves, each with the event of its last release."""
        found: dict[int, int] = {}
        for i, (kind, arg) in enumerate(self.events):
            if kind == Step.SAVE:
                found.setdefault(arg, len(self.events) - 1)
            elif kind == Step.RELEASE:
                found[arg] = i
        return found

    @cached_property
    def frees(self) -> dict[int, int]:
        """The event at which the program lets go of each storage."""
        return {arg: i for i, (kind, arg) in enumerate(self.events) if kind == Step.FREE}

    @cached_property
    def index(self) -> Index:
        """Tables for playing it."""
        return Index(self)

    @property
    def fixed(self) -> frozenset[int]:
        """Storages that are always kept: an operation that made them cannot be called again."""
        return self.index.fixed

    @cached_property
    def droppable(self) -> frozenset[int]:
        """Saved storages that can be made again from what is there."""
        return frozenset(number for number in self.saved if self._rebuilds(number))

    def _rebuilds(self, number: int) -> bool:
        calls = self.storages[number].calls
        return bool(calls) and all(self.calls[call].repeatable for call in calls)
