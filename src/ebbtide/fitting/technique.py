"""One way to save memory, as a plan has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Technique:
    """One way to save memory, taken or left.

    Attributes:
        name: such as ``"recompute"``.
        settings: what a plan needs to carry it out.
        bytes_saved_at_peak: how much lower the peak is with it, all else the same.
        seconds: how much longer a step takes with it.
        reason: why it was taken, or left.
    """

    name: str
    settings: dict[str, Any]
    bytes_saved_at_peak: int
    seconds: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return {
            "name": self.name,
            "settings": self.settings,
            "bytes_saved_at_peak": self.bytes_saved_at_peak,
            "seconds": self.seconds,
            "reason": self.reason,
        }
