"""What is done to a step, all techniques together."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.plan.recompute import Recompute


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """How a step is taken.

    Attributes:
        recompute: what is kept for backward; None: everything.
        expandable_segments: whether the caching allocator maps memory as it is needed
            (``PYTORCH_ALLOC_CONF=expandable_segments:True``), so that it leaves no gaps.
    """

    recompute: Recompute | None = None
    expandable_segments: bool = False


PLAIN = Decision()
"""The step as it is."""
