"""Compare training under a plan with plain training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ebbtide.fitting.applied import check
from ebbtide.fitting.live import random_state_kept
from ebbtide.fitting.stepping import Stepping
from ebbtide.fitting.work import Work
from ebbtide.plan.decision import PLAIN, Decision
from ebbtide.workloads.entry import mapped

if TYPE_CHECKING:
    from ebbtide.fitting.plan import Plan

State = dict[str, Tensor]
_TWICE = 2.0
_GROUPS = ("loss", "gradient", "parameter", "buffer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Relative errors against float64: the norm of the difference over the norm.

    Attributes:
        what: the tensors that are compared together.
        plain: without the plan.
        planned: under it.
        rounding: of the dtype: one number, as a loss, may be exact by chance.
    """

    what: str
    plain: float
    planned: float
    rounding: float

    @property
    def ok(self) -> bool:
        """Whether the plan's error is at most twice the plain one, or that of rounding."""
        return self.planned <= max(_TWICE * self.plain, self.rounding)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What a comparison found.

    Attributes:
        steps: how many were compared.
        compared: how many tensors: losses, gradients, parameters, buffers, random state.
        differences: one line for each tensor that is not the same bit for bit.
        errors: where the plan changes the order of sums, as splitting a batch does: against
            float64, of each step. Empty where the same bits are promised.
    """

    steps: int
    compared: int
    differences: tuple[str, ...]
    errors: tuple[Errors, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether everything is the same bit for bit."""
        return not self.differences

    @property
    def ok(self) -> bool:
        """Whether the plan keeps its promise."""
        return self.exact or (bool(self.errors) and all(each.ok for each in self.errors))

    def __str__(self) -> str:
        head = f"{self.compared} tensors of {self.steps} steps compared"
        if self.exact:
            return f"{head}: the same bit for bit."
        if not self.errors:
            lines = "\n".join(f"  {line}" for line in self.differences)
            return f"{head}, {len(self.differences)} differ:\n{lines}"
        verdict = "within" if self.ok else "NOT within"
        lines = "\n".join(
            f"  {each.what}: {each.planned:.2g}, plain {each.plain:.2g}" for each in self.errors
        )
        return f"{head}: {verdict} twice the plain error against float64:\n{lines}"


def verify(plan: Plan, work: Work, batches: Iterable[Any]) -> Verification:
    """`Plan.verify`, of the model that `work` has."""
    check(plan, work.model)
    given = list(batches)
    decision = plan.decision
    same_bits = decision.micro_batches == 1 and decision.implementation is None
    with random_state_kept():
        generator = torch.get_rng_state()
        if same_bits:
            return _compare_bits(work, given, decision, generator)
        return _compare_errors(work, given, decision, generator)


def _compare_bits(
    work: Work, batches: list[Any], decision: Decision, generator: Tensor
) -> Verification:
    plain = _run(work.copied(), batches, PLAIN, generator)
    planned = _run(work.copied(), batches, decision, generator)
    found: list[str] = []
    compared = 0
    for number, (one, other) in enumerate(zip(plain, planned, strict=True), 1):
        compared += len(one)
        found += [f"step {number}: {line}" for line in _differences(one, other, decision)]
    return Verification(steps=len(batches), compared=compared, differences=tuple(found))


def _compare_errors(
    work: Work, batches: list[Any], decision: Decision, generator: Tensor
) -> Verification:
    """Each step from the state that the model has now: later ones would differ by what they add."""
    found: list[str] = []
    errors: list[Errors] = []
    compared = 0
    for number, batch in enumerate(batches, 1):
        (plain,) = _run(work.copied(), [batch], PLAIN, generator)
        (planned,) = _run(work.copied(), [batch], decision, generator)
        (exact,) = _run(_doubled(work.copied()), [_double(batch)], PLAIN, generator)
        compared += len(plain)
        found += [f"step {number}: {line}" for line in _differences(plain, planned, decision)]
        for group in _GROUPS:
            names = [name for name in exact if name.startswith(group) and name in planned]
            if names:
                what = f"step {number}: {group}{'' if group == 'loss' else 's'}"
                errors.append(
                    Errors(
                        what=what,
                        plain=_error(plain, exact, names),
                        planned=_error(planned, exact, names),
                        rounding=torch.finfo(plain["loss"].dtype).eps,
                    )
                )
    return Verification(
        steps=len(batches),
        compared=compared,
        differences=tuple(found),
        errors=tuple(errors) if found else (),
    )


def _run(work: Work, batches: list[Any], decision: Decision, generator: Tensor) -> list[State]:
    torch.set_rng_state(generator)
    with Stepping(work, decision) as stepping:
        return list(_states(work, batches, stepping))


def _states(work: Work, batches: list[Any], stepping: Stepping) -> Iterator[State]:
    for batch in batches:
        found = {"loss": stepping.step(batch).clone(), "random state": torch.get_rng_state()}
        for name, parameter in work.model.named_parameters():
            found[f"parameter {name}"] = parameter.detach().clone()
            gradient = parameter.grad
            if gradient is not None and type(gradient) is Tensor:  # not spent in backward
                found[f"gradient of {name}"] = gradient.clone()
        for name, buffer in work.model.named_buffers():
            found[f"buffer {name}"] = buffer.clone()
        yield found


def _differences(one: State, other: State, decision: Decision) -> Iterator[str]:
    for name, expected in one.items():
        got = other.get(name)
        if got is None and decision.optimizer_in_backward and name.startswith("gradient"):
            continue  # it went with the step of its parameter, which is compared
        line = _difference(name, expected, got)
        if line is not None:
            yield line
    yield from (f"{name}: only under the plan" for name in other if name not in one)


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


def _error(found: State, exact: State, names: list[str]) -> float:
    """The norm of the difference over the norm, of all tensors of these names together."""
    difference = sum((found[name].double() - exact[name]).square().sum().item() for name in names)
    whole = sum(exact[name].double().square().sum().item() for name in names)
    return float((difference / whole) ** 0.5) if whole else float(difference**0.5)


def _doubled(work: Work) -> Work:
    """The same in float64; `work` is not to be used any more."""
    work.model.double()
    for state in work.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                state[name] = value.double()
    return replace(work)


def _double(batch: Any) -> Any:
    return mapped(batch, lambda each: each.double() if each.is_floating_point() else each)
