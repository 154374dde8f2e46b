"""Steps of training as a decision has them."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ebbtide.fitting.objective import objective_of
from ebbtide.fitting.work import Work
from ebbtide.plan.decision import Decision
from ebbtide.train.carry_out import carried_out
from ebbtide.train.micro_batches_step import MicroBatches
from ebbtide.train.optimizer_implementation import use_implementation
from ebbtide.train.optimizer_in_backward import OptimizerInBackward


class Stepping:
    """A context in which `work` takes its steps as `decision` says.

    Args:
        work: what is trained.
        decision: how.
        verify: compare the gradients of split batches with those of whole ones first.

    Raises:
        EbbtideError: on entry, where the optimizer cannot do what was decided.
    """

    def __init__(self, work: Work, decision: Decision, *, verify: bool = True) -> None:
        self._work, self._decision = work, decision
        self._in_backward = (
            OptimizerInBackward(work.optimizer) if decision.optimizer_in_backward else None
        )
        self._objective = objective_of(work.model, work.loss_fn)
        self._parts: MicroBatches | None = None
        if decision.micro_batches > 1:
            self._parts = MicroBatches(
                self._objective,
                work.model.parameters(),
                decision.micro_batches,
                verify=verify,
                hold=nullcontext if self._in_backward is None else self._in_backward.hold,
            )
        self._stack = ExitStack()

    def __enter__(self) -> Stepping:
        with ExitStack() as stack:
            if self._decision.implementation is not None:
                stack.enter_context(
                    use_implementation(self._work.optimizer, self._decision.implementation)
                )
            if self._in_backward is not None:
                stack.enter_context(self._in_backward)
            stack.enter_context(carried_out(self._decision))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def gradients(self, batch: Any) -> Tensor:
        """Clear the gradients and set those of `batch`. Returns the loss, without a graph.

        Raises:
            CannotSplitError: the batch cannot be taken in parts; nothing has been changed.
        """
        self._work.optimizer.zero_grad()
        if self._parts is not None:
            return self._parts(batch).detach()
        loss = self._objective(batch)
        torch.autograd.backward(loss)
        return loss.detach()

    def step(self, batch: Any) -> Tensor:
        """One step of training. Returns the loss, without a graph."""
        loss = self.gradients(batch)
        self._work.optimizer.step()
        return loss
