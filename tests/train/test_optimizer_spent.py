"""A gradient that is gone says so, whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ebbtide.errors import EbbtideError
from ebbtide.train.optimizer_spent import SpentGradient, SpentGradientError
from ebbtide.train.optimizer_twin import OptimizerError


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    for p in model.parameters():
        p.grad = SpentGradient(p)
    return model


def _scaler() -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    return scaler


USES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "clip by norm": (  # case T33
        lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0),
        "Clipping by the norm of all gradients needs a gradient that is gone",
    ),
    "clip by norm, one by one": (
        lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=False),
        "Clipping by the norm of all gradients",
    ),
    "clip by largest": (
        lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0, norm_type=torch.inf),
        "Clipping by the norm",
    ),
    "clip by value": (
        lambda m: nn.utils.clip_grad_value_(m.parameters(), 1.0),
        "Clipping gradients by value",
    ),
    "backward again": (
        lambda m: m(torch.ones(2, 4)).sum().backward(),
        "A second backward pass",
    ),
    "the scaler": (
        lambda m: _scaler().unscale_(torch.optim.AdamW(m.parameters())),
        "GradScaler",
    ),
    "a log": (lambda m: [p.grad.abs().mean().item() for p in m.parameters()], "operation abs"),
    "a copy": (lambda m: [p.grad.clone() for p in m.parameters()], "operation clone"),
    "arithmetic": (lambda m: [p.grad * 2 for p in m.parameters()], "operation mul"),
    "in place": (lambda m: [p.grad.mul_(2) for p in m.parameters()], "operation mul_"),
    "a list of them": (
        lambda m: torch._foreach_mul_([p.grad for p in m.parameters()], 2.0),
        "Scaling gradients",
    ),
    "a step": (lambda m: torch.optim.SGD(m.parameters()).step(), "needs a gradient that is gone"),
}


@pytest.mark.parametrize("use", USES)
def test_any_use_is_an_error(use: str) -> None:
    call, reason = USES[use]
    model = _model()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(SpentGradientError, match=reason) as caught:
        call(model)
    assert "out of the plan" in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_error_is_ours_and_torchs_kind() -> None:
    assert issubclass(SpentGradientError, (OptimizerError, EbbtideError))
    assert issubclass(SpentGradientError, RuntimeError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_has_the_shape_of_the_parameter(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(3, 5, dtype=dtype).t())
    p.grad = SpentGradient(p)
    assert isinstance(p.grad, SpentGradient)
    assert p.grad.shape == (5, 3)
    assert p.grad.stride() == p.stride()
    assert p.grad.dtype == dtype
    assert p.grad.device == p.device
    assert not p.grad.is_sparse
    assert repr(p.grad) == f"SpentGradient(shape=(5, 3), dtype={dtype})"


def test_it_takes_no_memory() -> None:
    p = nn.Parameter(torch.empty(1).expand(1 << 40))
    spent = SpentGradient(p)
    assert spent.numel() == 1 << 40
    with pytest.raises(RuntimeError, match="invalid python storage"):
        spent.untyped_storage().data_ptr()


def test_it_does_not_keep_the_parameter() -> None:
    p = nn.Parameter(torch.ones(3))
    spent = SpentGradient(p)
    del p
    assert spent.parameter() is None
    spent.zero_()


@pytest.mark.parametrize("foreach", [False, True])
def test_zeroing_makes_zeros(foreach: bool) -> None:
    """As `zero_grad(set_to_none=False)` leaves them after a plain step."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
    optimizer.zero_grad(set_to_none=False)
    for p in model.parameters():
        assert type(p.grad) is Tensor
        assert torch.equal(p.grad, torch.zeros_like(p))


def test_zeros_beside_others() -> None:
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    a.grad, b.grad = SpentGradient(a), torch.ones(2)
    torch._foreach_zero_([a.grad, b.grad])
    assert a.grad is not None
    assert a.grad.tolist() == b.grad.tolist() == [0, 0]


def test_setting_it_to_none_needs_nothing() -> None:
    model = _model()
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    assert all(type(p.grad) is Tensor for p in model.parameters())
