"""Low-bit state: only where it is allowed, and only where torchao is there."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from ebbtide.errors import MissingExtraError
from ebbtide.train.optimizer_low_bit import low_bit_optimizer
from ebbtide.train.optimizer_twin import OptimizerError


class _Made(torch.optim.SGD):
    """Notes what it was made with."""

    def __init__(self, groups: Any, **settings: Any) -> None:
        self.given = settings
        super().__init__([{k: g[k] for k in ("params", "lr")} for g in groups], lr=1.0)
        self.groups = groups


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the package, which tests do without."""
    package, module = ModuleType("torchao"), ModuleType("torchao.optim")
    for name in ("AdamW8bit", "AdamW4bit", "Adam8bit", "Adam4bit"):
        setattr(module, name, type(name, (_Made,), {}))
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.optim", module)


def _optimizer(made: Any = torch.optim.AdamW, **settings: Any) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = made(nn.Linear(4, 4).parameters(), **settings)
    return optimizer


def test_it_has_to_be_allowed(torchao: None) -> None:
    with pytest.raises(OptimizerError, match=r"changes the updates of AdamW.*allow_lossy=True"):
        low_bit_optimizer(_optimizer())


def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(MissingExtraError, match=r"'torchao'.*ebbtide\[low-bit\]"):
        low_bit_optimizer(_optimizer(), allow_lossy=True)


@pytest.mark.parametrize("made", [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize("bits", [8, 4])
def test_settings_and_groups_are_kept(torchao: None, made: Any, bits: int) -> None:
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = made(
        [{"params": [a], "lr": 0.5, "weight_decay": 0.3}, {"params": [b]}],
        lr=0.1,
        betas=(0.8, 0.9),
        eps=1e-5,
        amsgrad=True,
    )
    low: Any = low_bit_optimizer(optimizer, bits=bits, allow_lossy=True)
    assert type(low).__name__ == f"{made.__name__}{bits}bit"
    assert [group["lr"] for group in low.groups] == [0.5, 0.1]
    assert low.groups[0]["weight_decay"] == 0.3
    assert low.groups[0]["params"][0] is a
    assert low.groups[1]["params"][0] is b
    assert all(group["betas"] == (0.8, 0.9) for group in low.groups)
    assert low.given["eps"] == 1e-5
    assert low.given["amsgrad"] is True


@pytest.mark.parametrize(
    ("optimizer", "bits", "reason"),
    [
        (_optimizer(torch.optim.SGD, lr=0.1), 8, "no SGD with state in 8 bits"),
        (_optimizer(), 2, "no AdamW with state in 2 bits"),
        (_optimizer(maximize=True), 8, r"1 parameter group\(s\) maximise"),
    ],
)
def test_what_there_is_not_is_refused(
    torchao: None, optimizer: torch.optim.Optimizer, bits: int, reason: str
) -> None:
    with pytest.raises(OptimizerError, match=reason):
        low_bit_optimizer(optimizer, bits=bits, allow_lossy=True)


def test_state_that_is_there_is_not_lost(torchao: None) -> None:
    optimizer = _optimizer()
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    with pytest.raises(OptimizerError, match="has state for 2 parameters, which would be lost"):
        low_bit_optimizer(optimizer, allow_lossy=True)
