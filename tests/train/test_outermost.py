"""Outermost calls of modules are noticed, each once, and hooks go again."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_state

from ebbtide.train.outermost import OutermostCalls


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


def test_inner_calls_do_not_count() -> None:
    counted = Counted()
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    with OutermostCalls(counted):
        model(torch.zeros(1, 2))
        model[0](torch.zeros(1, 2))
    assert counted.calls == 2


def test_a_call_that_fails_ends_too() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("mine")

    counted = Counted()
    with OutermostCalls(counted):
        for _ in range(3):
            with pytest.raises(ValueError, match="mine"):
                nn.Sequential(nn.Linear(2, 2), Fails())(torch.zeros(1, 2))
    assert counted.calls == 3


def test_other_threads_do_not_count() -> None:
    counted = Counted()
    model = nn.Linear(2, 2)
    with OutermostCalls(counted):
        thread = threading.Thread(target=lambda: model(torch.zeros(1, 2)))
        thread.start()
        thread.join()
        assert counted.calls == 0
        model(torch.zeros(1, 2))
    assert counted.calls == 1


def test_nothing_is_left() -> None:
    before = (
        dict(module_state._global_forward_pre_hooks),
        dict(module_state._global_forward_hooks),
    )
    counted = Counted()
    with OutermostCalls(counted):
        assert len(module_state._global_forward_pre_hooks) == len(before[0]) + 1
    nn.Linear(2, 2)(torch.zeros(1, 2))
    assert counted.calls == 0
    assert before == (
        dict(module_state._global_forward_pre_hooks),
        dict(module_state._global_forward_hooks),
    )
