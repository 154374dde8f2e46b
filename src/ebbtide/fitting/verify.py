"""Compare training under a plan with plain training, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ebbtide.fitting.applied import apply
from ebbtide.fitting.live import random_state_kept
from ebbtide.fitting.work import Work

if TYPE_CHECKING:
    from ebbtide.fitting.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What a comparison found.

    Attributes:
        steps: how many were compared.
        compared: how many tensors: losses, gradients, parameters, buffers, random state.
        differences: one line for each tensor that is not the same bit for bit.
    """

    steps: int
    compared: int
    differences: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether everything is the same bit for bit."""
        return not self.differences

    def __str__(self) -> str:
        head = f"{self.compared} tensors of {self.steps} steps compared"
        if self.exact:
            return f"{head}: the same bit for bit."
        lines = "\n".join(f"  {line}" for line in self.differences)
        return f"{head}, {len(self.differences)} differ:\n{lines}"


def verify(plan: Plan, work: Work, batches: Iterable[Any]) -> Verification:
    """`Plan.verify`, of the model that `work` has."""
    given = list(batches)
    with random_state_kept():
        state = torch.get_rng_state()
        plain = list(_states(work.copied(), given, None))
        torch.set_rng_state(state)
        planned = list(_states(work.copied(), given, plan))
    found: list[str] = []
    compared = 0
    for one, other in zip(plain, planned, strict=True):
        for name, expected in one.items():
            compared += 1
            line = _difference(name, expected, other.get(name))
            if line is not None:
                found.append(line)
        found += [f"{name}: only under the plan" for name in other if name not in one]
    return Verification(steps=len(given), compared=compared, differences=tuple(found))


def _states(work: Work, batches: list[Any], plan: Plan | None) -> Iterator[dict[str, Tensor]]:
    for number, batch in enumerate(batches, 1):
        if plan is None:
            loss = work.step(batch)
        else:
            with apply(plan, work.model, work.optimizer, work.loss_fn) as step:
                loss = step(batch)
        at = f"step {number}"
        found = {f"{at}: loss": loss.clone(), f"{at}: random state": torch.get_rng_state()}
        for name, parameter in work.model.named_parameters():
            found[f"{at}: parameter {name}"] = parameter.detach().clone()
            if parameter.grad is not None:
                found[f"{at}: gradient of {name}"] = parameter.grad.clone()
        for name, buffer in work.model.named_buffers():
            found[f"{at}: buffer {name}"] = buffer.clone()
        yield found


def _difference(name: str, expected: Tensor, got: Tensor | None) -> str | None:
    if got is None:
        return f"{name}: missing under the plan"
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{name}: {expected.dtype} {tuple(expected.shape)} is {got.dtype} {tuple(got.shape)}"
    if torch.equal(expected, got):
        return None
    if expected.is_floating_point():
        both = expected.isnan() & got.isnan()
        if torch.equal(expected.masked_fill(both, 0), got.masked_fill(both, 0)):
            return None
        most = (expected - got).abs().max().item()
        return f"{name}: differs by up to {most:.3g}"
    return f"{name}: differs"
