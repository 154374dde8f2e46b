"""The training loop against what a user writes by hand, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ebbtide.errors import UsageError
from ebbtide.workloads.optimizers import make_optimizer
from ebbtide.workloads.options import OPTIMIZERS, WorkloadOptions
from ebbtide.workloads.training import Training, enable_checkpointing

BATCH = 4


class Toy:
    """A two-layer classifier as an architecture; counts its calls."""

    name = "toy"
    default_batch = BATCH

    def __init__(self) -> None:
        self.calls: list[torch.dtype] = []
        self.batches: list[int] = []

    def make_model(self, options: WorkloadOptions) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def make_inputs(
        self, options: WorkloadOptions, batch: int, device: torch.device
    ) -> Mapping[str, Any]:
        self.batches.append(batch)
        generator = torch.Generator().manual_seed(len(self.batches))
        return {"x": torch.randn(batch, 6, generator=generator), "y": torch.arange(batch) % 3}

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        result = model(inputs["x"])
        self.calls.append(result.dtype)
        return result

    def loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        return nn.functional.cross_entropy(self.outputs(model, inputs), inputs["y"])

    def decodes(self) -> bool:
        return False


def _by_hand(steps: int, accumulate: int, optimizer: str) -> list[Tensor]:
    """The loop that everybody writes."""
    toy = Toy()
    model = toy.make_model(WorkloadOptions())
    stepper = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
    }[optimizer](model.parameters())
    for _ in range(steps):
        stepper.zero_grad()
        for _ in range(accumulate):
            loss = toy.loss(model, toy.make_inputs(WorkloadOptions(), BATCH, torch.device("cpu")))
            (loss / accumulate).backward()
        stepper.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "none"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_parameters_are_those_of_the_ordinary_loop(optimizer: str, accumulate: int) -> None:
    options = WorkloadOptions(optimizer=optimizer, grad_accum=accumulate)
    training = Training(Toy(), options, "cpu")
    for i in range(3):
        training.step(i)
    expected = _by_hand(3, accumulate, optimizer)
    for ours, theirs in zip(training.model.parameters(), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_step_in_backward_moves_the_parameters_as_a_step_after_it() -> None:
    training = Training(Toy(), WorkloadOptions(optimizer_in_backward=True), "cpu")
    for i in range(3):
        training.step(i)
    expected = _by_hand(3, 1, "adamw")
    for ours, theirs in zip(training.model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert training.optimizer is None
    assert all(p.grad is None for p in training.model.parameters())


def test_without_an_optimizer_gradients_remain_and_do_not_pile_up() -> None:
    training = Training(Toy(), WorkloadOptions(optimizer="none"), "cpu")
    training.step(0)
    before = [p.detach().clone() for p in training.model.parameters()]
    training.step(1)
    assert training.optimizer is None
    toy = Toy()
    toy.batches.append(0)
    model = toy.make_model(WorkloadOptions())
    toy.loss(model, toy.make_inputs(WorkloadOptions(), BATCH, torch.device("cpu"))).backward()
    for ours, same, theirs in zip(
        training.model.parameters(), before, model.parameters(), strict=True
    ):
        assert torch.equal(ours, same) and ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize(("amp", "dtype"), [("bf16", torch.bfloat16), (None, torch.float32)])
def test_autocast_is_around_the_model(amp: str | None, dtype: torch.dtype) -> None:
    toy = Toy()
    training = Training(toy, WorkloadOptions(amp=amp), "cpu")
    training.step(0)
    assert toy.calls == [dtype] and training.scaler is None


def test_half_precision_scales_its_loss() -> None:
    training = Training(Toy(), WorkloadOptions(amp="fp16"), "cpu")
    assert training.scaler is not None
    training.step(0)
    assert training.scaler.get_scale() > 1


@pytest.mark.parametrize(("asked", "batch"), [(None, BATCH), (7, 7)])
def test_the_batch_is_the_users_or_the_architectures(asked: int | None, batch: int) -> None:
    toy = Toy()
    training = Training(toy, WorkloadOptions(batch=asked), "cpu")
    training.step(0)
    assert training.batch == batch and toy.batches == [batch]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("default", {"foreach": None, "fused": None}),
        ("foreach", {"foreach": True, "fused": None}),
        ("fused", {"foreach": None, "fused": True}),
        ("for-loop", {"foreach": False, "fused": False}),
    ],
)
def test_each_implementation_of_an_optimizer(kind: str, settings: dict[str, Any]) -> None:
    optimizer = make_optimizer(nn.Linear(2, 2).parameters(), WorkloadOptions(optimizer_kind=kind))
    assert {name: optimizer.defaults[name] for name in settings} == settings


@pytest.mark.parametrize("optimizer", ["rmsprop", "adafactor"])
def test_what_torch_does_not_fuse_is_said(optimizer: str) -> None:
    options = WorkloadOptions(optimizer=optimizer, optimizer_kind="fused")
    with pytest.raises(UsageError, match=f"torch has no fused {optimizer}"):
        make_optimizer(nn.Linear(2, 2).parameters(), options)


def test_frozen_parameters_have_no_state() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    optimizer = make_optimizer(model.parameters(), WorkloadOptions())
    assert optimizer.param_groups[0]["params"] == [model.weight]


def test_a_model_without_checkpointing_says_so() -> None:
    with pytest.raises(UsageError, match="toy has no checkpointing of its own"):
        enable_checkpointing(nn.Linear(2, 2), "toy")


def test_checkpointing_changes_no_gradient(tiny: Callable[..., str]) -> None:
    from ebbtide.workloads.architectures import find

    gradients = []
    for checkpointing in (False, True):
        options = WorkloadOptions(batch=2, seq=8, optimizer="none", checkpointing=checkpointing)
        torch.manual_seed(0)
        training = Training(find(tiny(), options)[0], options, "cpu")
        layers = [m for m in training.model.modules() if hasattr(m, "gradient_checkpointing")]
        assert layers and {m.gradient_checkpointing for m in layers} == {checkpointing}
        torch.manual_seed(1)
        training.step(0)
        gradients.append([p.grad for p in training.model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)
