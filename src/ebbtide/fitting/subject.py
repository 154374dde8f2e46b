"""Where a step can be looked at before it is planned, and a plan tried before it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ebbtide.plan.decision import Decision
from ebbtide.plan.graph import StepGraph


@dataclass(frozen=True, slots=True)
class Replay:
    """What a step under a plan came to.

    Attributes:
        peak_bytes: the most that was allocated at once; as far as it went where it ran out.
        fits: whether it ran within the limit.
    """

    peak_bytes: int
    fits: bool


class Subject(Protocol):
    """A workload that takes steps whenever it is asked to.

    Attributes:
        virtual: whether it is on a virtual GPU. Then times are predicted, the same each time,
            and the allocator has settings.
        steps: whether the steps are ours, so that other things can be done in them than what
            hooks below the program do.
        batch_size: samples of a step, as far as batches can be taken in parts.
    """

    virtual: bool
    steps: bool
    batch_size: int

    def survey(self, decision: Decision) -> StepGraph:
        """A steady step taken as `decision` says, of which nothing is recomputed.

        Raises:
            EbbtideError: it cannot be taken so.
        """

    def replay(self, decision: Decision, limit_bytes: int) -> Replay:
        """Steps taken as `decision` says, with no more than `limit_bytes`."""
