"""Clipping with the step in backward: the bits of `clip_grad_norm_` and a plain step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ebbtide.train.clip import clipped_backward
from ebbtide.train.micro_batches_step import MicroBatches
from ebbtide.train.optimizer_in_backward import OptimizerInBackward
from ebbtide.train.optimizer_spent import SpentGradient
from ebbtide.train.optimizer_twin import OptimizerError

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 10, (8,), generator=torch.Generator().manual_seed(2))


def _model(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), *between, nn.Linear(12, 10))


def _backward(model: nn.Module) -> Tensor:
    loss = nn.functional.cross_entropy(model(X), Y)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _compare(
    make: Callable[[], nn.Module], max_norm: float, norm_type: float = 2.0, steps: int = 3
) -> list[float]:
    """Norms of the steps, after everything was found to be the same."""
    plain, ours = make(), make()
    reference = torch.optim.AdamW(plain.parameters(), lr=0.1)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.1)
    norms = []
    with OptimizerInBackward(optimizer) as in_backward:
        for step in range(steps):
            torch.manual_seed(step)
            expected = _backward(plain)
            norm = nn.utils.clip_grad_norm_(plain.parameters(), max_norm, norm_type)
            reference.step()
            reference.zero_grad()
            random = torch.get_rng_state()

            torch.manual_seed(step)
            loss, found = clipped_backward(
                in_backward,
                lambda: _backward(ours),
                max_norm,
                buffers=ours.buffers(),
                norm_type=norm_type,
            )
            assert all(isinstance(p.grad, SpentGradient) for p in ours.parameters())
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(loss, expected)
            assert torch.equal(found, norm)
            assert torch.equal(torch.get_rng_state(), random)
            norms.append(found.item())
    for a, b in zip(plain.state_dict().values(), ours.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert str(optimizer.state_dict()) == str(reference.state_dict())
    return norms


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.0, 0.05, 1e6])
def test_clipping_is_that_of_torch(max_norm: float, norm_type: float) -> None:
    norms = _compare(_model, max_norm, norm_type)
    assert all(norm > 0.05 for norm in norms)


def test_dropout_drops_the_same() -> None:
    _compare(lambda: _model(nn.Dropout(0.5)), 0.05)


def test_a_batch_norm_moves_once() -> None:
    _compare(lambda: _model(nn.BatchNorm1d(12)), 0.05)


def test_gradients_are_not_there_together() -> None:
    model = _model(nn.Linear(12, 12), nn.Linear(12, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    most = []

    def count(*_: Any) -> None:
        most.append(sum(type(p.grad) is Tensor for p in model.parameters()))

    def run() -> Tensor:
        loss = model(X.clone().requires_grad_()).square().mean()
        loss.backward()
        return loss.detach()  # type: ignore[no-any-return]

    for layer in model:
        layer.register_full_backward_hook(count)
    with OptimizerInBackward(optimizer) as in_backward:
        clipped_backward(in_backward, run, 0.1)
    assert len(most) == 10
    assert max(most) <= 2  # weight and bias of one layer


def test_in_micro_batches() -> None:
    plain, ours = _model(), _model()
    reference = torch.optim.AdamW(plain.parameters(), lr=0.1)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.1)

    def objective(model: nn.Module) -> Callable[[Any], Tensor]:
        return lambda b: nn.functional.cross_entropy(model(b[0]), b[1])

    expected = MicroBatches(objective(plain), plain.parameters(), 3)
    with OptimizerInBackward(optimizer) as in_backward:
        step = MicroBatches(objective(ours), ours.parameters(), 3, hold=in_backward.hold)
        for _ in range(3):
            expected((X, Y))
            norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
            reference.step()
            reference.zero_grad()
            _, found = clipped_backward(in_backward, lambda: step((X, Y)), 0.05)
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(found, norm)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), ours.parameters(), strict=True)
    )


def test_several_passes_and_a_parameter_that_is_not_in_the_last() -> None:
    def run(layers: nn.ModuleList) -> Tensor:
        loss = layers[0](X).square().mean() + layers[1](X).square().mean()
        loss.backward()
        layers[1](X).abs().mean().backward()
        return loss.detach()

    def make() -> nn.ModuleList:
        torch.manual_seed(0)
        return nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)])

    plain, ours = make(), make()
    reference = torch.optim.AdamW(plain.parameters())
    optimizer = torch.optim.AdamW(ours.parameters())
    with OptimizerInBackward(optimizer, passes=2) as in_backward:
        for _ in range(2):
            run(plain)
            norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
            reference.step()
            reference.zero_grad()
            _, found = clipped_backward(in_backward, lambda: run(ours), 0.01)
            assert type(ours[0].weight.grad) is Tensor
            assert isinstance(ours[1].weight.grad, SpentGradient)
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(found, norm)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), ours.parameters(), strict=True)
    )


def test_an_infinite_norm_is_as_in_torch() -> None:
    """Gradients become 0 or not a number, as `clip_grad_norm_` makes them."""
    plain, ours = _model(), _model()
    for model in (plain, ours):
        model[2].bias.data[0] = 1e38

    def run(model: nn.Module) -> Tensor:
        loss = model(X).square().sum()
        loss.backward()
        return loss.detach()

    run(plain)
    norm = nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    reference.step()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    with OptimizerInBackward(optimizer) as in_backward:
        _, found = clipped_backward(in_backward, lambda: run(ours), 1.0)
    assert not norm.isfinite()
    assert torch.equal(found.isnan(), norm.isnan())
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


def test_no_gradient_at_all() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with OptimizerInBackward(optimizer) as in_backward:
        loss, norm = clipped_backward(in_backward, lambda: torch.ones(()), 1.0)
    assert loss == 1
    assert norm == 0


def test_bad_input_is_refused() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    with OptimizerInBackward(optimizer) as in_backward:
        with pytest.raises(OptimizerError, match=r"max_norm is -1.0"):
            clipped_backward(in_backward, lambda: _backward(model), -1.0)
        with in_backward.hold():
            _backward(model)
        with pytest.raises(OptimizerError, match="4 gradients are there before the step"):
            clipped_backward(in_backward, lambda: _backward(model), 1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_error_leaves_a_context_that_goes_on() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fails() -> Tensor:
        raise ValueError("mine")

    with OptimizerInBackward(optimizer) as in_backward:
        ready = in_backward.ready
        with pytest.raises(ValueError, match="mine"):
            clipped_backward(in_backward, fails, 1.0)
        assert in_backward.ready is ready
        _backward(model)
        assert all(isinstance(p.grad, SpentGradient) for p in model.parameters())
