"""Adapters: which layers get one, of which size, and that only they are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ebbtide.errors import UsageError
from ebbtide.workloads.architectures import build, find
from ebbtide.workloads.lora import LoraOnQuantized
from ebbtide.workloads.options import Lora, WorkloadOptions

HIDDEN, KEYS, UP = 64, 32, 96


def _trained(path: str, lora: Lora, **settings: Any) -> tuple[nn.Module, dict[str, int]]:
    options = WorkloadOptions(batch=2, seq=8, lora=lora, **settings)
    running = build(find(path, options)[0], options, "cpu")
    running.step(0)
    trained = {n: p.numel() for n, p in running.model.named_parameters() if p.requires_grad}
    return running.model, trained


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_a_model_that_answers_holds_its_adapters(
    tiny: Callable[..., str], quantize: str | None
) -> None:
    def held(lora: Lora | None) -> int:
        options = WorkloadOptions(
            batch=1, seq=8, inference=True, kv_tokens=12, lora=lora, quantize=quantize
        )
        running = build(find(tiny(), options)[0], options, "cpu")
        running.step(0)
        assert not running.model.training
        return sum(p.numel() for p in running.model.parameters())

    added = 2 * (4 * HIDDEN + 4 * HIDDEN)  # of rank 4, in two layers
    assert held(Lora(r=4, targets=("q_proj",))) - held(None) == added


@pytest.mark.parametrize("rank", [1, 4, 16])
@pytest.mark.parametrize(
    ("targets", "widths"),
    [
        (("q_proj",), [(HIDDEN, HIDDEN)]),
        (("q_proj", "v_proj"), [(HIDDEN, HIDDEN), (HIDDEN, KEYS)]),
        (("down_proj",), [(UP, HIDDEN)]),
    ],
)
def test_rank_and_targets_set_what_is_trained(
    tiny: Callable[..., str], rank: int, targets: tuple[str, ...], widths: list[tuple[int, int]]
) -> None:
    """Case P19: both move the breakdown, in two layers each."""
    _, trained = _trained(tiny(), Lora(r=rank, targets=targets))
    assert sum(trained.values()) == 2 * sum(rank * (i + o) for i, o in widths)


def test_without_targets_peft_chooses_by_model_type(tiny: Callable[..., str]) -> None:
    _, trained = _trained(tiny(), Lora(r=4))
    assert {name.split(".")[-4] for name in trained} == {"q_proj", "v_proj"}


def test_only_adapters_have_gradients_and_state(tiny: Callable[..., str]) -> None:
    options = WorkloadOptions(batch=2, seq=8, lora=Lora(r=4))
    running = build(find(tiny(), options)[0], options, "cpu")
    running.step(0)
    assert running.optimizer is not None
    with_grad = [p for p in running.model.parameters() if p.grad is not None]
    assert with_grad and set(running.optimizer.state) == set(with_grad)


def test_a_wrong_target_is_said(tiny: Callable[..., str]) -> None:
    with pytest.raises(UsageError, match="lora: .*no_such_layer"):
        _trained(tiny(), Lora(r=4, targets=("no_such_layer",)))
    with pytest.raises(UsageError, match="no quantised layer is named no_such_layer"):
        _trained(tiny(), Lora(r=4, targets=("no_such_layer",)), quantize="nf4")


@pytest.mark.parametrize("kind", ["int8", "fp8", "nf4"])
def test_adapters_on_quantised_layers(tiny: Callable[..., str], kind: str) -> None:
    model, trained = _trained(
        tiny(), Lora(r=4, targets=("q_proj", "v_proj")), quantize=kind, dtype="bf16"
    )
    assert sum(trained.values()) == 2 * 4 * (HIDDEN + HIDDEN + HIDDEN + KEYS)
    assert sum(isinstance(m, LoraOnQuantized) for m in model.modules()) == 4


def test_an_adapter_begins_as_nothing() -> None:
    from ebbtide.workloads.quantize import QuantizedLinear

    base = QuantizedLinear(nn.Linear(8, 6), "int8")
    x = torch.randn(2, 8)
    torch.testing.assert_close(LoraOnQuantized(base, 2)(x), base(x))


def test_convolutions_get_adapters_too() -> None:
    """Case P17: a ResNet, where peft has no choice of its own."""
    options = WorkloadOptions(batch=2, image=64, lora=Lora(r=8), optimizer="sgd")
    running = build(find("torchvision/resnet18", options)[0], options, "cpu")
    running.step(0)
    adapted = {n for n, p in running.model.named_parameters() if p.requires_grad}
    convolutions = [m for m in running.model.modules() if type(m) is nn.Conv2d and m.bias is None]
    assert adapted and all("lora_" in name for name in adapted)
    assert not any(".fc." in name for name in adapted)
    assert len(convolutions) > 20
