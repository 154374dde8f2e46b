"""Train under a plan: a context, and the step that it hands out."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ebbtide.errors import DoesNotFitError, PlanError
from ebbtide.fitting.fingerprint import fingerprint
from ebbtide.fitting.objective import LossFunction
from ebbtide.fitting.plan import Plan
from ebbtide.fitting.stepping import Stepping
from ebbtide.fitting.work import Work
from ebbtide.units import format_bytes

# Models that are being trained under a plan.
_active: weakref.WeakKeyDictionary[nn.Module, PlannedStep] = weakref.WeakKeyDictionary()


class PlannedStep:
    """A step of training under a plan."""

    def __init__(self, plan: Plan, stepping: Stepping) -> None:
        self.plan = plan
        self._stepping = stepping

    def __call__(self, batch: Any) -> Tensor:
        """Clear the gradients, set those of `batch`, and let the optimizer step.

        Returns:
            The loss, without a graph.
        """
        return self._stepping.step(batch)

    def gradients(self, batch: Any) -> Tensor:
        """The same without the optimizer: to clip gradients, or to look at them.

        Returns:
            The loss, without a graph.
        """
        return self._stepping.gradients(batch)


@contextmanager
def apply(
    plan: Plan, model: nn.Module, optimizer: Optimizer, loss_fn: LossFunction | None
) -> Iterator[PlannedStep]:
    """`Plan.apply`."""
    running = _active.get(model)
    if running is not None:
        if running.plan is not plan:
            raise PlanError(
                "The model is being trained under another plan. Leave that one's `apply` first."
            )
        yield running
        return
    check(plan, model)
    with Stepping(Work(model, optimizer, loss_fn), plan.decision) as stepping:
        step = _active[model] = PlannedStep(plan, stepping)
        try:
            yield step
        finally:
            _active.pop(model, None)


def check(plan: Plan, model: nn.Module) -> None:
    """Refuse a plan that is not for this model.

    Raises:
        PlanError: it was made for another one.
        DoesNotFitError: it says itself that it does not fit.
    """
    if not plan.fits:
        raise DoesNotFitError(
            f"The plan does not fit its budget of {format_bytes(plan.budget_bytes)}: it needs "
            f"{format_bytes(plan.predicted_peak_bytes)}. Plan with a larger one."
        )
    if plan.model and plan.model != fingerprint(model):
        raise PlanError(
            f"The plan is for the model {plan.model}, this one is {fingerprint(model)}: names, "
            "shapes, dtypes or frozen parameters differ. Plan this model with `ebbtide.fit`."
        )
