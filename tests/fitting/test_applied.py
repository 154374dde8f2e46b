"""Training under a plan: who may, what is undone, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.fitting.models import chain, same, state_of
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import ebbtide
from ebbtide import DoesNotFitError, Plan, PlanError, UsageError


@pytest.fixture(scope="module")
def plan() -> Plan:
    model, optimizer, batch = chain()
    loose = ebbtide.fit(model, optimizer, batch, F.mse_loss, budget="1GiB")
    made = ebbtide.fit(
        model, optimizer, batch, F.mse_loss, budget=int(loose.predicted_peak_bytes * 0.8)
    )
    assert made.techniques
    return made


def test_a_plan_holds_for_another_model_of_the_same_kind(plan: Plan) -> None:
    model, optimizer, batch = chain()
    with plan.apply(model, optimizer) as step:
        first = step(batch)
        assert step(batch) < first


def test_everything_is_undone_on_exit_and_after_an_error(plan: Plan) -> None:
    model, optimizer, batch = chain()
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    for fails in (False, True):
        try:
            with plan.apply(model, optimizer) as step:
                assert len(_get_current_dispatch_mode_stack()) == 1
                step(batch)
                if fails:
                    raise ValueError("mine")
        except ValueError as error:
            assert str(error) == "mine"
        assert not _get_current_dispatch_mode_stack()
        assert not hooks
    with plan.apply(model, optimizer) as step:
        step(batch)


def test_applying_twice_is_applying_once(plan: Plan) -> None:
    model, optimizer, batch = chain()
    with plan.apply(model, optimizer) as step, plan.apply(model, optimizer) as other:
        assert other is step
        assert len(_get_current_dispatch_mode_stack()) == 1
        step(batch)


def test_another_plan_meanwhile_is_refused(plan: Plan) -> None:
    model, optimizer, _ = chain()
    other = dataclasses.replace(plan, budget_bytes=plan.budget_bytes + 1)
    with (
        plan.apply(model, optimizer),
        pytest.raises(PlanError, match="another plan"),
        other.apply(model, optimizer),
    ):
        pass
    assert not _get_current_dispatch_mode_stack()


def test_another_model_is_refused_and_stays_as_it_is(plan: Plan) -> None:
    model, optimizer, _ = chain(blocks=7)
    before = state_of(model, optimizer)
    with (
        pytest.raises(PlanError, match=r"names, shapes, dtypes or frozen"),
        plan.apply(model, optimizer),
    ):
        pass
    assert same(before, state_of(model, optimizer))


def test_a_plan_that_does_not_fit_is_not_carried_out(plan: Plan) -> None:
    model, optimizer, _ = chain()
    with (
        pytest.raises(DoesNotFitError, match="Plan with a larger one"),
        dataclasses.replace(plan, fits=False).apply(model, optimizer),
    ):
        pass


def test_a_plan_from_a_file_is_the_same_plan(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    model, optimizer, batch = chain()
    assert loaded.verify([batch], model, optimizer, F.mse_loss).exact
    with pytest.raises(UsageError, match="has no model"):
        loaded.verify([batch])
    with pytest.raises(UsageError, match="exists already"):
        plan.save(tmp_path / "plan.json")
    plan.save(tmp_path / "plan.json", force=True)


def test_a_loop_of_ones_own_follows_the_plan(plan: Plan) -> None:
    losses = []
    for planned in (False, True):
        model, optimizer, (x, y) = chain()
        context = plan.apply(model, optimizer) if planned else torch.enable_grad()
        torch.manual_seed(3)
        with context:  # type: ignore[attr-defined]
            for _ in range(3):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    model(x)
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_another_kind_of_step_is_right_and_warned_of(plan: Plan) -> None:
    """A model that changes between steps: gradients are right, memory is not promised."""
    states = []
    for planned in (False, True):
        model, optimizer, batch = chain()
        model[3] = nn.Sequential(model[3], nn.Tanh())  # type: ignore[index]
        bare = dataclasses.replace(plan, model="")
        torch.manual_seed(3)
        if planned:
            with bare.apply(model, optimizer) as step, pytest.warns(UserWarning, match="not the"):
                step(batch)
        else:
            optimizer.zero_grad()
            F.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
        states.append(state_of(model, optimizer))
    assert same(*states)


def test_a_difference_is_found_by_name(plan: Plan) -> None:
    class Noisy(torch.optim.SGD):
        """Steps a little further when a dispatch mode is on."""

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            super().step()
            if _get_current_dispatch_mode_stack():
                with torch.no_grad():
                    self.param_groups[0]["params"][0].add_(1e-3)

    model, _, batch = chain()
    found = plan.verify([batch], model, Noisy(model.parameters(), lr=0.1))
    assert not found.exact
    assert len(found.differences) == 1
    assert "step 1: parameter 0.0.weight: differs by up to 0.001" in str(found)
