"""Around the update in `optimizer.step()`: after the closure, before anything changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ebbtide.train.optimizer_hooks import AroundStep
from ebbtide.train.optimizer_twin import OptimizerError


class _Seen:
    def __init__(self) -> None:
        self.p = nn.Parameter(torch.ones(2))
        self.p.grad = torch.ones(2)
        self.optimizer = torch.optim.SGD([self.p], lr=0.5)
        self.order: list[str] = []

    def before(self) -> None:
        self.order.append(f"before {self.p[0].item()}")

    def after(self) -> None:
        self.order.append(f"after {self.p[0].item()}")

    def around(self) -> AroundStep:
        return AroundStep(self.optimizer, self.before, self.after)


def test_before_and_after_the_update() -> None:
    seen = _Seen()
    around = seen.around()
    seen.optimizer.step()
    assert seen.order == ["before 1.0", "after 0.5"]
    around.remove()
    seen.optimizer.step()
    assert len(seen.order) == 2
    assert not seen.optimizer._optimizer_step_pre_hooks
    assert not seen.optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("by_name", [False, True])
def test_after_the_closure(by_name: bool) -> None:
    seen = _Seen()
    seen.around()

    def closure() -> Tensor:
        seen.order.append("closure")
        return torch.tensor(7.0)

    step = seen.optimizer.step
    assert (step(closure=closure) if by_name else step(closure)) == 7
    assert seen.order == ["closure", "before 1.0", "after 0.5"]


def test_last_of_the_pre_hooks_and_first_of_the_post_hooks() -> None:
    seen = _Seen()
    seen.optimizer.register_step_pre_hook(lambda *_: seen.order.append("their pre"))
    seen.optimizer.register_step_post_hook(lambda *_: seen.order.append("their post"))
    around = seen.around()
    assert around.others() == 1
    seen.optimizer.step()
    assert seen.order == ["their pre", "before 1.0", "after 0.5", "their post"]


def test_a_pre_hook_that_comes_later_is_an_error() -> None:
    seen = _Seen()
    seen.around()
    seen.optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(OptimizerError, match="Register it before applying the plan"):
        seen.optimizer.step()
    assert seen.p.tolist() == [1, 1]


def test_a_schedulers_wrapper_stays() -> None:
    seen = _Seen()
    schedule = torch.optim.lr_scheduler.StepLR(seen.optimizer, 1, 0.5)
    around = seen.around()
    seen.optimizer.step()
    schedule.step()
    assert seen.optimizer.param_groups[0]["lr"] == 0.25
    around.remove()
    seen.optimizer.step()
    assert seen.p.tolist() == [0.25, 0.25]


def test_an_error_before_the_update_stops_it() -> None:
    seen = _Seen()

    def fails() -> None:
        raise ValueError("mine")

    AroundStep(seen.optimizer, fails, seen.after)
    with pytest.raises(ValueError, match="mine"):
        seen.optimizer.step()
    assert seen.p.tolist() == [1, 1]
    assert seen.order == []
