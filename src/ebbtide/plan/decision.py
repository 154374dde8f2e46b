"""What is done to a step, all techniques together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ebbtide.plan.recompute import Recompute

Implementation = Literal["plain", "foreach", "fused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """How a step is taken.

    Attributes:
        recompute: what is kept for backward; None: everything.
        expandable_segments: whether the caching allocator maps memory as it is needed
            (``PYTORCH_ALLOC_CONF=expandable_segments:True``), so that it leaves no gaps.
        micro_batches: parts of a batch whose gradients are added up.
        implementation: of the optimizer; None: as it is.
        optimizer_in_backward: whether each parameter is stepped as soon as its gradient is
            there.
    """

    recompute: Recompute | None = None
    expandable_segments: bool = False
    micro_batches: int = 1
    implementation: Implementation | None = None
    optimizer_in_backward: bool = False


PLAIN = Decision()
"""The step as it is."""
