"""`ebbtide.fit` of a model: what it promises holds, and nothing of the caller's changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fitting.models import MiB, Training, chain, images, same, state_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import ebbtide
from ebbtide import DoesNotFitError, Plan, TargetError, UnknownGpuError, UsageError
from ebbtide.fitting.cpu_peak import peak_of
from ebbtide.fitting.stepping import Stepping
from ebbtide.fitting.work import Work, bytes_of
from ebbtide.plan.decision import PLAIN

TRAININGS: dict[str, tuple[Callable[[], Training], Any]] = {
    "chain": (chain, F.mse_loss),
    "images": (images, nn.CrossEntropyLoss()),
}


def plain_peak(training: Training, loss_fn: Any) -> int:
    model, optimizer, batch = training
    work = Work(model, optimizer, loss_fn).copied()
    with Stepping(work, PLAIN) as plain:
        plain.step(batch)
        work.optimizer.zero_grad()
        return bytes_of(work, batch) + peak_of(lambda: plain.step(batch))


@pytest.mark.parametrize("share", [1.1, 0.9, 0.8])
@pytest.mark.parametrize("name", TRAININGS)
def test_a_step_under_the_plan_stays_in_the_budget_and_is_the_same(name: str, share: float) -> None:
    make, loss_fn = TRAININGS[name]
    training = make()
    budget = int(plain_peak(training, loss_fn) * share)
    model, optimizer, batch = training
    plan = ebbtide.fit(model, optimizer, batch, loss_fn, budget=budget)
    assert plan.fits
    assert plan.predicted_peak_bytes <= budget
    assert bool(plan.techniques) == (share < 1)
    assert plan.verify([batch] * 3).exact

    work = Work(model, optimizer, loss_fn)
    with plan.apply(model, optimizer) as step:
        step(batch)
        optimizer.zero_grad()
        measured = bytes_of(work, batch) + peak_of(lambda: step(batch))
    assert measured <= budget


def test_planning_changes_nothing() -> None:
    model, optimizer, batch = images()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    before, python, numpy = state_of(model, optimizer), random.getstate(), np.random.get_state()
    hooks = len(torch.nn.modules.module._global_forward_hooks)
    ebbtide.fit(model, optimizer, batch, F.cross_entropy, budget="1GiB")
    ebbtide.fit(model, optimizer, batch, F.cross_entropy, gpu="l4", budget="1GiB")
    with pytest.raises(DoesNotFitError):
        ebbtide.fit(model, optimizer, batch, F.cross_entropy, budget="1MiB")
    assert same(before, state_of(model, optimizer))
    assert random.getstate() == python
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy, strict=True))
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks


def test_training_under_the_plan_is_plain_training() -> None:
    states = []
    for planned in (False, True):
        model, optimizer, batch = images()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        if planned:
            budget = int(plain_peak((model, optimizer, batch), F.cross_entropy) * 0.8)
            plan = ebbtide.fit(model, optimizer, batch, F.cross_entropy, budget=budget)
            assert plan.techniques
            torch.manual_seed(1)
            with plan.apply(model, optimizer) as step:
                for _ in range(3):
                    step.gradients(batch)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    scheduler.step()
        else:
            torch.manual_seed(1)
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(model(batch[0]), batch[1]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
        states.append(state_of(model, optimizer))
    assert same(*states)


def test_a_plan_for_a_gpu_is_made_without_one() -> None:
    model, optimizer, batch = chain(width=128, batch=4096)
    loose = ebbtide.fit(model, optimizer, batch, F.mse_loss, gpu="l4")
    assert loose.where == "l4"
    assert not loose.techniques
    tight = ebbtide.fit(
        model, optimizer, batch, F.mse_loss, gpu="l4", budget=loose.predicted_peak_bytes * 3 // 4
    )
    assert tight.predicted_peak_bytes < loose.predicted_peak_bytes * 3 // 4
    assert tight.predicted_step_s > loose.predicted_step_s
    assert all(each.device.type == "cpu" for each in model.parameters())


def test_the_front_costs_more_the_less_memory_there_is() -> None:
    model, optimizer, batch = chain()
    front = ebbtide.fit(model, optimizer, batch, F.mse_loss, budget="1GiB").front
    assert len(front) > 2
    assert [each.peak_bytes for each in front] == sorted(each.peak_bytes for each in front)
    times = [each.step_s for each in front]
    assert times == sorted(times, reverse=True)


def test_a_budget_below_the_weights_is_refused_with_figures() -> None:
    model, optimizer, batch = chain()
    with pytest.raises(DoesNotFitError, match=r"Parameters.* take .*MiB alone.*budget of 100"):
        ebbtide.fit(model, optimizer, batch, F.mse_loss, budget="100KiB")


def test_a_budget_that_nothing_reaches_is_refused_with_the_least() -> None:
    model, optimizer, batch = chain()
    held = bytes_of(Work(model, optimizer, F.mse_loss), batch) * 3  # with the optimizer's state
    with pytest.raises(DoesNotFitError, match="brings the peak down to about"):
        ebbtide.fit(model, optimizer, batch, F.mse_loss, budget=held + MiB // 2)


class Attentive(nn.Module):
    """Returns a loss, as Transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of ``(N, T, 32)`` against ``(N,)``."""
        return {"loss": F.mse_loss(self.head(self.layer(x)).mean((1, 2)), labels)}


@pytest.mark.parametrize(
    "loss_fn",
    [
        None,
        lambda model, batch: model(**batch)["loss"],
        lambda output, batch: output["loss"],
        lambda output: output["loss"],
    ],
)
def test_a_loss_may_be_said_in_many_ways(loss_fn: Any) -> None:
    model = Attentive()
    optimizer = torch.optim.Adam(model.parameters())
    batch = {"x": torch.randn(4, 16, 32), "labels": torch.randn(4)}
    plan = ebbtide.fit(model, optimizer, batch, loss_fn, budget="1GiB")
    assert plan.verify([batch]).exact
    before = model.head.weight.detach().clone()
    with plan.apply(model, optimizer) as step:
        loss = step(batch)
    assert loss.shape == ()
    assert not loss.requires_grad
    assert not torch.equal(before, model.head.weight)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no budget": ({}, UsageError, "budget='8GiB', or gpu="),
    "a budget of nothing": ({"budget": 0}, UsageError, "more than 0"),
    "a negative budget": ({"budget": -5}, UsageError, "more than 0"),
    "a budget that is no size": ({"budget": "much"}, UsageError, "no size"),
    "a budget that is a list": ({"budget": [1]}, UsageError, "expected bytes or text"),
    "a budget that is nan": ({"budget": float("nan")}, UsageError, "expected bytes or text"),
    "a budget that is true": ({"budget": True}, UsageError, "expected bytes or text"),
    "an unknown GPU": ({"gpu": "l5"}, UnknownGpuError, "l5"),
    "a loss that is none": ({"budget": 1, "loss_fn": 3}, UsageError, "loss_fn"),
    "a class of loss": ({"budget": 1, "loss_fn": nn.MSELoss}, UsageError, "loss_fn"),
    "no model": ({"budget": 1, "model": 3}, UsageError, "model: expected"),
    "no optimizer": ({"budget": 1, "optimizer": torch.optim.Adam}, UsageError, "an instance"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    arguments, error, text = BAD[name]
    model, optimizer, batch = chain(1, 8, 2)
    given = {"model": model, "optimizer": optimizer, "loss_fn": F.mse_loss, **arguments}
    with pytest.raises(error, match=text):
        ebbtide.fit(given.pop("model"), given.pop("optimizer"), batch, **given)


def test_an_optimizer_of_another_model_is_refused() -> None:
    model, _, batch = chain(1, 8, 2)
    _, optimizer, _ = chain(1, 8, 2)
    with pytest.raises(UsageError, match="none of its parameters"):
        ebbtide.fit(model, optimizer, batch, F.mse_loss, budget="1GiB")


def test_a_loss_function_that_returns_no_number_is_refused() -> None:
    model, optimizer, batch = chain(1, 8, 2)
    with pytest.raises(TargetError, match="one value"):
        ebbtide.fit(model, optimizer, batch, lambda output, batch: output, budget="1GiB")


def split(batch: int = 512) -> Training:
    """Layers without dropout, which may be taken in parts."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU()) for _ in range(1)))
    model = nn.Sequential(model, nn.Linear(256, 64))
    return model, AdamW(model.parameters()), (torch.randn(batch, 64), torch.randn(batch, 64))


def test_a_batch_in_parts_is_the_same_but_for_the_order_of_sums() -> None:
    model, optimizer, batch = split(4096)
    budget = int(plain_peak((model, optimizer, batch), F.mse_loss) * 0.45)
    with pytest.raises(DoesNotFitError):
        ebbtide.fit(model, optimizer, batch, F.mse_loss, budget=budget, exact=True)
    plan = ebbtide.fit(model, optimizer, batch, F.mse_loss, budget=budget)
    parts = plan.technique("micro-batching")
    assert parts is not None
    assert parts.settings["parts"] > 1
    assert parts.bytes_saved_at_peak > 0
    found = plan.verify([batch] * 2)
    assert found.ok
    assert not found.exact
    assert "within twice the plain error" in str(found)
    with plan.apply(model, optimizer) as step:
        assert step(batch) > 0


def test_what_cannot_be_split_is_left_with_the_reason() -> None:
    model, optimizer, batch = images()
    budget = int(plain_peak((model, optimizer, batch), F.cross_entropy) * 0.8)
    plan = ebbtide.fit(model, optimizer, batch, F.cross_entropy, budget=budget)
    (left,) = (each for each in plan.left if each.name == "micro-batching")
    assert left.reason.startswith("Not possible: ")
    assert "batch norm" in left.reason.lower()


def test_an_optimizer_in_backward_keeps_every_bit() -> None:
    """Where gradients are what is large at the peak."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    optimizer = AdamW(model.parameters())
    batch = torch.randn(4, 256), torch.randn(4, 256)
    peak = plain_peak((model, optimizer, batch), F.mse_loss)
    plan = ebbtide.fit(model, optimizer, batch, F.mse_loss, budget=int(peak * 0.9))
    assert [each.name for each in plan.techniques] == ["optimizer in backward"]
    assert plan.verify([batch] * 3).exact
    with plan.apply(model, optimizer) as step:
        step(batch)
        optimizer.zero_grad()
        work = Work(model, optimizer, F.mse_loss)
        assert bytes_of(work, batch) + peak_of(lambda: step(batch)) <= plan.budget_bytes


def test_a_file_has_all_techniques(tmp_path: Path) -> None:
    model, optimizer, batch = split(4096)
    budget = int(plain_peak((model, optimizer, batch), F.mse_loss) * 0.45)
    plan = ebbtide.fit(model, optimizer, batch, F.mse_loss, budget=budget)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").decision == plan.decision
