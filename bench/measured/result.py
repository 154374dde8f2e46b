"""What was predicted for a row, beside what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One line of the table; bytes.

    Attributes:
        id, group, kind: of the row and its case.
        measured_bytes: what the row has.
        low_bytes, likely_bytes, high_bytes: the prediction; None where there is none.
        peak_bytes: the peak of the whole run, where the row's figure is of another moment.
        seconds: of the prediction.
        remark: an assumption, a known cause, or why there is no prediction.
    """

    id: str
    group: str
    kind: str
    measured_bytes: int
    low_bytes: int | None = None
    likely_bytes: int | None = None
    high_bytes: int | None = None
    peak_bytes: int | None = None
    seconds: float = 0.0
    remark: str = ""

    @property
    def error(self) -> float:
        """Of the likely figure, relative to the measured one.

        Raises:
            ValueError: there is no prediction.
        """
        if self.likely_bytes is None:
            raise ValueError(f"{self.id} was not predicted")
        return self.likely_bytes / self.measured_bytes - 1

    @property
    def inside(self) -> bool:
        """Whether the measured figure lies between low and high."""
        return (
            self.low_bytes is not None
            and self.high_bytes is not None
            and self.low_bytes <= self.measured_bytes <= self.high_bytes
        )

    @property
    def width(self) -> float:
        """High minus low, relative to likely; 0 where there is no prediction."""
        if not self.likely_bytes or self.low_bytes is None or self.high_bytes is None:
            return 0.0
        return (self.high_bytes - self.low_bytes) / self.likely_bytes

    def to_json(self) -> dict[str, Any]:
        """All fields, with the error."""
        error = self.error if self.likely_bytes is not None else None
        return {**asdict(self), "error": error}
