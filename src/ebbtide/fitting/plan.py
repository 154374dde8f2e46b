"""A plan: what to do so that a training step fits, and what it comes to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.errors import UsageError
from ebbtide.fitting.planner import Point
from ebbtide.fitting.technique import Technique
from ebbtide.plan.decision import Decision
from ebbtide.plan.recompute import Recompute

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ebbtide.fitting.applied import PlannedStep
    from ebbtide.fitting.objective import LossFunction
    from ebbtide.fitting.verify import Verification
    from ebbtide.fitting.work import Work

FORMAT = 1
RECOMPUTE = "recompute"
ALLOCATOR = "allocator settings"
MICRO_BATCHES = "micro-batching"
IMPLEMENTATION = "optimizer implementation"
IN_BACKWARD = "optimizer in backward"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What makes a step fit.

    Attributes:
        budget_bytes: what it was made for.
        fits: whether it fits.
        predicted_peak_bytes: the most allocated at once, as replayed.
        plain_peak_bytes: the same without the plan.
        predicted_step_s: time of a step: on a virtual GPU as its clock has it, on the CPU as
            measured while planning.
        host_bytes: pinned memory on the host.
        techniques: what is done, with settings.
        left: what is not done, and why.
        front: budgets against step times.
        optimality_gap: how much more than the least is computed again at most, as a share;
            None where that is not known.
        where: the device it was made for.
        model: of the model, what `fingerprint` says; "" where none was seen.
        work: the model, optimizer and loss function that it was made with; not in the file.
    """

    budget_bytes: int
    fits: bool
    predicted_peak_bytes: int
    plain_peak_bytes: int
    predicted_step_s: float
    host_bytes: int = 0
    techniques: tuple[Technique, ...] = ()
    left: tuple[Technique, ...] = ()
    front: tuple[Point, ...] = ()
    optimality_gap: float | None = None
    where: str = "cpu"
    model: str = ""
    work: Work | None = field(default=None, compare=False, repr=False)

    def technique(self, name: str) -> Technique | None:
        """The technique of that name, if it is taken."""
        return next((each for each in self.techniques if each.name == name), None)

    @property
    def decision(self) -> Decision:
        """The techniques for the runtime."""
        taken = {each.name: each.settings for each in self.techniques}
        recompute = taken.get(RECOMPUTE)
        return Decision(
            recompute=None if recompute is None else _recompute(recompute),
            expandable_segments=ALLOCATOR in taken,
            micro_batches=taken.get(MICRO_BATCHES, {}).get("parts", 1),
            implementation=taken.get(IMPLEMENTATION, {}).get("implementation"),
            optimizer_in_backward=IN_BACKWARD in taken,
        )

    def apply(
        self, model: nn.Module, optimizer: Optimizer, loss_fn: LossFunction | None = None
    ) -> AbstractContextManager[PlannedStep]:
        """Train under the plan.

        ``with plan.apply(model, optimizer) as step: loss = step(batch)`` clears the gradients,
        computes them, lets the optimizer step and returns the loss. For a loop of your own the
        context alone is enough: every forward and backward pass inside it follows the plan.

        Args:
            model: the one it was made for, or one like it.
            optimizer: of its parameters.
            loss_fn: as `ebbtide.fit` takes it; by default the one that it was given.

        Raises:
            PlanError: the model is another one.
        """
        from ebbtide.fitting.applied import apply

        if loss_fn is None and self.work is not None:
            loss_fn = self.work.loss_fn
        return apply(self, model, optimizer, loss_fn)

    def verify(
        self,
        batches: Iterable[Any],
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        loss_fn: LossFunction | None = None,
    ) -> Verification:
        """Train copies with and without the plan, and compare bit for bit.

        Args:
            batches: one a step.
            model: by default, as the two that follow, what `ebbtide.fit` was given. It stays
                as it is.
            optimizer: of its parameters.
            loss_fn: as `ebbtide.fit` takes it.

        Raises:
            PlanError: the model is another one.
            UsageError: the plan is from a file, and no model was given.
        """
        from ebbtide.fitting.verify import verify

        return verify(self, self._work(model, optimizer, loss_fn), batches)

    def _work(
        self, model: nn.Module | None, optimizer: Optimizer | None, loss_fn: LossFunction | None
    ) -> Work:
        from ebbtide.fitting.work import Work

        own = self.work
        if own is not None:
            loss_fn = loss_fn if loss_fn is not None else own.loss_fn
            model, optimizer = model or own.model, optimizer or own.optimizer
        if model is None or optimizer is None:
            raise UsageError(
                "A plan from a file has no model: plan.verify(batches, model, optimizer, loss_fn)."
            )
        return Work(model, optimizer, loss_fn)

    def to_json(self) -> dict[str, Any]:
        """The fields by name, for a file or another program."""
        return {
            "ebbtide_plan": FORMAT,
            "budget_bytes": self.budget_bytes,
            "fits": self.fits,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "plain_peak_bytes": self.plain_peak_bytes,
            "predicted_step_s": self.predicted_step_s,
            "host_bytes": self.host_bytes,
            "techniques": [each.to_json() for each in self.techniques],
            "left": [each.to_json() for each in self.left],
            "front": [
                {"peak_bytes": each.peak_bytes, "step_s": each.step_s} for each in self.front
            ],
            "optimality_gap": self.optimality_gap,
            "where": self.where,
            "model": self.model,
        }

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the plan to a file.

        Raises:
            UsageError: the file exists and `force` is not set, or cannot be written.
        """
        place = Path(path)
        if place.exists() and not force:
            raise UsageError(f"{place} exists already. Use force=True (--force) to overwrite it.")
        partial = place.with_name(f".{place.name}.partial")
        try:
            partial.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            partial.replace(place)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise UsageError(f"{place} cannot be written: {error.strerror}.") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """A plan from a file that `save` wrote, edited or not.

        Raises:
            UsageError: it is none.
        """
        from ebbtide.fitting.plan_file import read

        return read(Path(path))


def _recompute(settings: dict[str, Any]) -> Recompute:
    def placed(name: str) -> dict[tuple[int, int], int]:
        return {(operation, output): at for operation, output, at in settings.get(name, ())}

    return Recompute(
        operations=tuple(settings["operations"]),
        kept=frozenset((each["operation"], each["output"]) for each in settings["keep"]),
        holds=placed("holds"),
        keeps=placed("keeps"),
        lasts=placed("lasts"),
    )
