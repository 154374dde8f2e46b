"""How columns of integers grow with the batch size, from their values at two or three sizes.

Almost every allocation is affine in the batch, ``a + c*b`` bytes: two traces fix it
and a third checks it. What the third contradicts still goes through all three points,
but is reported: as a parabola where one that rises from batch 1 on fits (the scores
of a contrastive loss), as straight pieces where not (rounding, a kernel's thresholds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.trace.model import Ints

_EXACT = float(1 << 62)
# A parabola is drawn where the third value lies more than 1 % above the line; a
# rounding of a few bytes must not grow with the square of the batch.
_NOTICEABLE = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Columns of integers as functions of the batch.

    Attributes:
        batches: the two or three batch sizes that were traced, ascending.
        values: the columns at each of them, of equal length.
    """

    batches: tuple[int, ...]
    values: tuple[Ints, ...]

    def __post_init__(self) -> None:
        if len(self.batches) not in (2, 3) or list(self.batches) != sorted(set(self.batches)):
            raise ValueError(f"Growth: expected 2 or 3 ascending batches, got {self.batches}")
        if len({len(column) for column in self.values}) != 1 or len(self.values) != len(
            self.batches
        ):
            raise ValueError("Growth: expected one column of equal length for each batch")

    @property
    def bent(self) -> Ints:
        """Rows that are not affine: the third value is not on the line through two."""
        if len(self.batches) == 2:
            return np.empty(0, np.int64)
        (b0, b1, b2), (y0, y1, y2) = self.batches, self.values
        return np.flatnonzero((y2 - y0) * (b1 - b0) != (y1 - y0) * (b2 - b0))

    @property
    def growing(self) -> Ints:
        """Rows that change with the batch at all."""
        return np.flatnonzero(self.values[-1] != self.values[0])

    def at(self, batch: int) -> Ints | None:
        """The columns at `batch`, never below zero, fractions rounded up; None past 2**62.

        At a traced batch these are the traced values.
        """
        first, last = self.batches[0], self.batches[-1]
        y0, y_last = self.values[0], self.values[-1]
        steps, width = batch - first, last - first
        change = y_last - y0
        if abs(steps) * float(np.abs(change).max(initial=0)) >= _EXACT:
            return None
        result = y0 + -(-(change * steps) // width)
        for row in self.bent:
            result[row] = _through_points(self.batches, [int(v[row]) for v in self.values], batch)
        if float(result.astype(np.float64).sum()) >= _EXACT:
            return None
        return np.maximum(result, 0)


def _through_points(batches: Sequence[int], values: Sequence[int], batch: int) -> int:
    """A curve through three points at `batch`, fractions rounded up."""
    (b0, b1, b2), (y0, y1, y2) = batches, values
    bend = (y2 - y0) * (b1 - b0) - (y1 - y0) * (b2 - b0)
    # Newton's form of the parabola, in whole numbers; it must not fall where batches begin.
    width = (b1 - b0) * (b2 - b0) * (b2 - b1)
    slope = (y1 - y0) * (b2 - b0) * (b2 - b1)
    rising = slope + bend * (2 - b0 - b1) >= 0
    if rising and bend * _NOTICEABLE > y2 * (b1 - b0):
        value = y0 + -(-((batch - b0) * slope + (batch - b0) * (batch - b1) * bend) // width)
    elif batch <= b1:
        value = y0 + -(-((y1 - y0) * (batch - b0)) // (b1 - b0))
    else:
        value = y1 + -(-((y2 - y1) * (batch - b1)) // (b2 - b1))
    # Past int64 is past any GPU; the caller sees the sum.
    return min(value, 1 << 62)
