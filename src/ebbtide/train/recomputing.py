"""Carry out a decision on what to keep, step after step."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from ebbtide.plan.recompute import Recompute
from ebbtide.train.holding import Holding
from ebbtide.train.saved import Dropped, Kept, SavedTensors
from ebbtide.train.tape import Tape


class Recomputing(SavedTensors):
    """A context in which forward passes keep what `recompute` says.

    A pass that is not the one it was made for is right all the same, but keeps everything from
    where it differs: a warning says so, once, if it saves anything from there on.
    """

    def __init__(self, recompute: Recompute) -> None:
        kept = recompute.kept
        holding = Holding(holds=recompute.holds, keeps=recompute.keeps, lasts=recompute.lasts)
        super().__init__(Tape(lambda place: place not in kept, recompute.operations), holding)
        self._expected = recompute.operations
        self._saves_lost = self._warned = False

    def _pack(self, tensor: Tensor) -> Any:
        self._saves_lost = self._saves_lost or self.tape.lost is not None
        return super()._pack(tensor)

    def _unpack(self, saved: Kept | Dropped) -> Tensor:
        if self._saves_lost and self.tape.lost is not None:
            self._saves_lost = False
            if not self._warned:
                self._warned = True
                warnings.warn(_differs(self.tape.lost, self._expected), stacklevel=2)
        return super()._unpack(saved)


def _differs(lost: tuple[int, str], expected: tuple[str, ...]) -> str:
    number, name = lost
    planned = f"was {expected[number]}" if number < len(expected) else "did not exist"
    return (
        f"This forward pass is not the one that was planned: its operation {number} is {name} and "
        f"{planned} then. What it saves from there on is kept, so it may take more memory than the "
        "plan says. Gradients are right. Plan again with a batch of this kind."
    )
