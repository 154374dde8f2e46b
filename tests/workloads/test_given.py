"""Copies of a user's model without its data, and what has no copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.errors import UsageError
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.given import check_kinds, copy_without_data, eager, note_compiled


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    with VirtualGpu("t4") as gpu:
        yield gpu


def _set(name: str, value: object) -> nn.Sequential:
    """A model whose inner module has one more attribute."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    setattr(model[1], name, value)
    return model


def test_a_copy_keeps_ties_flags_and_plain_tensors(gpu: VirtualGpu) -> None:
    model = _set("mask", torch.ones(3))
    model[0].weight = model[1].weight
    model[0].bias.requires_grad_(False)
    copied = copy_without_data(model)
    assert copied[0].weight is copied[1].weight is not model[0].weight
    flags = {name: each.requires_grad for name, each in model.named_parameters()}
    assert {name: each.requires_grad for name, each in copied.named_parameters()} == flags
    assert all(isinstance(each.data, FakeTensor) for each in copied.parameters())
    assert torch.equal(copied[1].mask, torch.ones(3))


def test_a_model_of_inference_mode_can_be_trained(gpu: VirtualGpu) -> None:
    with torch.inference_mode():
        model = nn.BatchNorm1d(4)
    copied = copy_without_data(model)
    assert [each.requires_grad for each in copied.parameters()] == [True, True]
    for one, other in zip(copied.state_dict().values(), model.state_dict().values(), strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        assert not one.is_inference()


class Holder:
    """Something of the user's that holds a lock deep inside."""

    def __init__(self) -> None:
        self.inside = [threading.Lock()]


def _computed() -> torch.Tensor:
    return torch.ones(2, requires_grad=True) * 2


UNCOPIED: list[tuple[Callable[[], object], str]] = [
    (_computed, "its attribute '1.held' holds a tensor that was computed"),
    (lambda: {"last": [_computed()]}, "its attribute '1.held' holds a tensor"),
    (threading.Lock, r"its attribute '1.held' \(lock\): .*cannot pickle"),
    (Holder, r"its attribute '1.held' \(Holder\): .*cannot pickle"),
]


class Own(nn.Linear):
    """Its copying fails."""

    def __deepcopy__(self, memo: object) -> nn.Module:
        raise ZeroDivisionError


def test_what_has_no_copy(gpu: VirtualGpu) -> None:
    with pytest.raises(UsageError, match=r"because of Own: ZeroDivisionError\(\)"):
        copy_without_data(Own(2, 2))
    for make, message in UNCOPIED:
        model = _set("held", make())
        with pytest.raises(UsageError, match=message) as caught:
            copy_without_data(model)
        assert "ebbtide.predict(lambda: Model(), ...)" in str(caught.value)
        del model[1].held  # as the message says
        assert len(list(copy_without_data(model).children())) == 2


def test_torchscript_is_named() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="it is TorchScript"):
        check_kinds(scripted)
    with pytest.raises(UsageError, match="its module '1.0' is TorchScript"):
        check_kinds(nn.Sequential(nn.ReLU(), nn.Sequential(scripted)))


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_until_they_are_called() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    with pytest.raises(UsageError, match=r"'0\.weight' of LazyLinear is uninitialised"):
        check_kinds(model)
    model(torch.ones(2, 3))  # as the message says
    check_kinds(model)


def test_compiled_models_within_each_other(gpu: VirtualGpu) -> None:
    from torch._dynamo import OptimizedModule

    inner = nn.Linear(2, 2)
    model = nn.Sequential(OptimizedModule(inner, lambda each: each))  # type: ignore[arg-type]
    outer = OptimizedModule(model, lambda each: each)  # type: ignore[arg-type]
    assert eager(outer) is model
    assert eager(inner) is inner
    copied = copy_without_data(eager(outer))
    assert not any(isinstance(each, OptimizedModule) for each in copied.modules())
    # The name is the one that the caller's state dictionary has.
    assert list(copied.state_dict()) == list(model.state_dict())
    note_compiled(outer, len)
    assert gpu.guesses["compile"][1] == 2
