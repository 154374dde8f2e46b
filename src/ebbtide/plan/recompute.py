"""What a step keeps for backward; the rest of what it saves is made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.plan.choose import Choice
from ebbtide.plan.graph import StepGraph

Place = tuple[int, int]
"""Number of an operation in the forward pass, and of its output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute:
    """The decision for one forward pass. `ebbtide.plan.simulate` says what positions mean.

    Attributes:
        operations: the pass it was made for, by the names of its operations.
        kept: places whose storages stay.
        holds, keeps, lasts: positions by place.
    """

    operations: tuple[str, ...]
    kept: frozenset[Place]
    holds: Mapping[Place, int] = field(default_factory=dict)
    keeps: Mapping[Place, int] = field(default_factory=dict)
    lasts: Mapping[Place, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: StepGraph, choice: Choice) -> Recompute:
        """What was chosen for `graph`, by place."""

        def placed(positions: Mapping[int, int]) -> dict[Place, int]:
            found = ((graph.storages[each].place, at) for each, at in sorted(positions.items()))
            return {place: at for place, at in found if place is not None}

        kept = (graph.storages[number].place for number in choice.kept)
        return cls(
            operations=tuple(call.name for call in graph.calls),
            kept=frozenset(place for place in kept if place is not None),
            holds=placed(choice.holds),
            keeps=placed(choice.keeps),
            lasts=placed(choice.outcome.lasts),
        )
