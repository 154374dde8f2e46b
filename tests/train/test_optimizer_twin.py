"""Stepping some parameters at a time is stepping them together, for optimizers that allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ebbtide.train.optimizer_twin import (
    OptimizerError,
    _equal,
    _trial,
    check_separable,
    plain_step,
    step_parameters,
    twin,
)

MATRICES = [nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(2, 5))]
OF_TORCH: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW with a tensor as rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Muon": lambda p: torch.optim.Muon(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


class _Own(Optimizer):
    """A user's: sign of the gradient, with a momentum of its own."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    def _norm(self, group: dict[str, Any]) -> Any:
        return 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            norm = self._norm(group)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state.setdefault("mean", torch.zeros_like(p)).lerp_(p.grad.sign() / norm, 0.5)
                p.add_(state["mean"], alpha=-group["lr"])


class _Normed(_Own):
    """Scales by the norm of all gradients."""

    def _norm(self, group: dict[str, Any]) -> Tensor:
        norms = [p.grad.norm() for p in group["params"] if p.grad is not None]
        return torch.stack(norms).norm()


class _Counting(_Own):
    """Counts steps in the group, as schedule-free optimizers do."""

    def _norm(self, group: dict[str, Any]) -> int:
        group["k"] = group.get("k", 0) + 1
        return int(group["k"])


class _Shared(_Own):
    """Keeps something in the state that belongs to no parameter."""

    def _norm(self, group: dict[str, Any]) -> Any:
        shared = self.state["shared"]
        shared["n"] = shared.get("n", 0) + 1
        return shared["n"]


def _parameters(count: int = 3) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(4, 4 + i, generator=draw)) for i in range(count)]


def _give_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=draw)


@pytest.mark.parametrize("name", OF_TORCH)
def test_optimizers_of_torch_step_parameters_apart(name: str) -> None:
    """What `check_separable` takes for granted."""
    together, apart = _parameters(), _parameters()
    plain, ours = OF_TORCH[name](together), OF_TORCH[name](apart)
    check_separable(ours)
    for seed in range(4):
        _give_gradients(together, seed)
        _give_gradients(apart, seed)
        plain.step()
        step_parameters(ours, apart[1:2])
        step_parameters(ours, [apart[2], apart[0]])
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    assert _equal(plain.state_dict(), ours.state_dict())


@pytest.mark.parametrize("name", OF_TORCH)
def test_the_trial_agrees(name: str) -> None:
    optimizer = OF_TORCH[name](_parameters())
    made = len(optimizer.state)  # Adagrad makes its state at once
    assert _equal(_trial(optimizer, True), _trial(optimizer, False))
    assert len(optimizer.state) == made


def test_one_of_the_users_is_tried() -> None:
    check_separable(_Own(_parameters()))


@pytest.mark.parametrize("made", [_Normed, _Counting, _Shared])
def test_one_that_looks_at_all_is_refused(made: type[_Own]) -> None:
    parameters = _parameters()
    optimizer = made(parameters)
    before = [p.detach().clone() for p in parameters]
    with pytest.raises(OptimizerError, match=f"{made.__name__} cannot step its parameters one"):
        check_separable(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    assert not optimizer.state
    assert all(p.grad is None for p in parameters)
    assert "k" not in optimizer.param_groups[0]


def test_lbfgs_is_refused() -> None:
    with pytest.raises(OptimizerError, match="one direction for all 3 parameters together"):
        check_separable(torch.optim.LBFGS(_parameters()))


def test_one_that_fails_is_refused() -> None:
    class Broken(_Own):
        def _norm(self, group: dict[str, Any]) -> Any:
            raise ValueError("needs a GPU")

    with pytest.raises(OptimizerError, match="could not be tried: ValueError: needs a GPU"):
        check_separable(Broken(_parameters()))


def test_groups_have_their_own_settings_and_are_read_anew() -> None:
    a, b = _parameters(2)
    start = a.detach().clone(), b.detach().clone()
    optimizer = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b]}], lr=0.5)
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    step_parameters(optimizer, [a, b])
    assert torch.equal(a, start[0] - 1)
    assert torch.equal(b, start[1] - 0.5)
    optimizer.param_groups[1]["lr"] = 0.0
    step_parameters(optimizer, [a, b])
    assert torch.equal(a, start[0] - 1 - 1)
    assert torch.equal(b, start[1] - 0.5)


def test_hooks_do_not_run_and_a_schedulers_wrapper_is_left_out() -> None:
    parameters = _parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ran = []
    optimizer.register_step_pre_hook(lambda *given: ran.append("pre"))
    optimizer.register_step_post_hook(lambda *given: ran.append("post"))
    _give_gradients(parameters, 0)
    step_parameters(optimizer, parameters)
    assert ran == []
    assert not getattr(optimizer, "_opt_called", False)
    optimizer.step()
    assert ran == ["pre", "post"]


def test_another_state_may_be_given() -> None:
    parameters = _parameters()
    optimizer = torch.optim.AdamW(parameters)
    state: dict[Any, Any] = {p: {} for p in parameters}
    _give_gradients(parameters, 0)
    step_parameters(optimizer, parameters, state)
    assert not optimizer.state
    assert state[parameters[0]]["step"] == 1


def test_a_twin_is_of_the_same_class_and_touches_nothing() -> None:
    parameters, others = _parameters(), _parameters()
    optimizer = _Own(parameters)
    optimizer.note = "mine"  # type: ignore[attr-defined]
    made = twin(optimizer, [{**optimizer.param_groups[0], "params": others}])
    assert type(made) is _Own
    assert made.note == "mine"  # type: ignore[attr-defined]
    _give_gradients(others, 0)
    plain_step(made)
    assert len(made.state) == 3
    assert not optimizer.state
    assert optimizer.param_groups[0]["params"] == parameters


def test_scaled_gradients_are_unscaled_as_the_fused_kernel_does() -> None:
    """GradScaler hands the scale over as attributes of the optimizer."""
    together, apart = _parameters(), _parameters()
    plain = torch.optim.AdamW(together, fused=True)
    ours = torch.optim.AdamW(apart, fused=True)
    for optimizer, parameters in ((plain, together), (ours, apart)):
        _give_gradients(parameters, 1)
        optimizer.grad_scale = torch.tensor(8.0)  # type: ignore[attr-defined]
        optimizer.found_inf = torch.tensor(0.0)  # type: ignore[attr-defined]
    plain.step()
    step_parameters(ours, apart)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
