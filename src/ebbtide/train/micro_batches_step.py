"""The forward and backward passes of a step, in micro-batches, for any number of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.train.micro_batches import run_parts
from ebbtide.train.micro_batches_plan import Objective, Part, Reader, share_parts
from ebbtide.train.splitting import batch_size
from ebbtide.train.splitting_check import verify_split


class MicroBatches:
    """Call it with a batch in place of ``objective(batch).backward()``; returns the loss.

    The first batch is checked by figures on a few samples. What the loss reduces over is read
    once for each shape of batches, and from it what parts count in each batch; so the model
    has to stay in training or in evaluation mode. Where values of the batch decide what is
    computed, such as a selection by a mask, it is read for each batch.

    Args:
        objective: the loss of one batch, with the model bound.
        parameters: all parameters of the model, frozen ones too.
        parts: micro-batches; fewer for a batch of fewer samples.
        dim: the batch dimension.
        allow_random: split although dropout will draw other bits.
        verify: compare gradients on the first batch.
        backward: takes the weighted loss of a part.
        hold: a context for all but the last part, as `OptimizerInBackward.hold`.
    """

    def __init__(
        self,
        objective: Objective,
        parameters: Iterable[Tensor],
        parts: int,
        *,
        dim: int = 0,
        allow_random: bool = False,
        verify: bool = True,
        backward: Callable[[Tensor], None] = torch.Tensor.backward,
        hold: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.objective, self.parameters, self.parts = objective, list(parameters), parts
        self.dim, self.allow_random = dim, allow_random
        self.virtual = any(isinstance(p, FakeTensor) for p in self.parameters)
        self.verify = verify and parts > 1 and not self.virtual
        self.backward, self.hold = backward, hold
        self._readers: dict[int, Reader] = {}

    def __call__(self, batch: Any) -> Tensor:
        """Forward and backward of `batch`.

        Raises:
            CannotSplitError: with the reason; nothing has been changed.
        """
        if self.verify:
            verify_split(
                self.objective,
                self.parameters,
                batch,
                self.parts,
                dim=self.dim,
                allow_random=self.allow_random,
            ).require()
            self.verify = False
        return run_parts(self.objective, self.plan(batch), backward=self.backward, hold=self.hold)

    def plan(self, batch: Any) -> list[Part]:
        """The parts of `batch` and what they count."""
        parts = min(self.parts, batch_size(batch, self.dim))
        if parts == 1 or self.virtual:
            return share_parts(batch, parts, dim=self.dim)
        reader = self._readers.get(parts)
        if reader is None:
            reader = self._readers[parts] = Reader(
                self.objective,
                self.parameters,
                parts,
                dim=self.dim,
                allow_random=self.allow_random,
            )
        return reader.parts(batch)
