"""How long what is saved for backward is held: the part of a plan that the hooks carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Place = tuple[int, int]
"""Number of an operation of the forward pass, and of its output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """By place, positions in the forward pass, in operations.

    `ebbtide.plan.simulate` says what they mean. Whether a storage is dropped at all is the
    tape's to say.

    Attributes:
        holds: for readers from here down, what is made again stays.
        keeps: for readers from here up, what is dropped is kept after all.
        lasts: of the reader for whom it is read the last time to make another; with
            `ebbtide.plan.simulate.NEVER` it stays while anything can be made from it.
    """

    holds: Mapping[Place, int] = field(default_factory=dict)
    keeps: Mapping[Place, int] = field(default_factory=dict)
    lasts: Mapping[Place, int] = field(default_factory=dict)
