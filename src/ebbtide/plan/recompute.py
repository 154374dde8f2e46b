"""What a step keeps for backward; the rest of what it saves is made again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide.plan.graph import StepGraph

Place = tuple[int, int]
"""Number of an operation in the forward pass, and of its output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute:
    """The decision for one forward pass.

    Attributes:
        operations: the pass it was made for, by the names of its operations.
        kept: places whose storages stay.
    """

    operations: tuple[str, ...]
    kept: frozenset[Place]

    @classmethod
    def of(cls, graph: StepGraph, kept: Iterable[int]) -> Recompute:
        """To keep the storages of `graph` with the numbers `kept`."""
        places = (graph.storages[number].place for number in kept)
        return cls(
            operations=tuple(call.name for call in graph.calls),
            kept=frozenset(place for place in places if place is not None),
        )
