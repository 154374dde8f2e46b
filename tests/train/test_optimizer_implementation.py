"""Plain, foreach and fused: switched for a while, and what each takes on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ebbtide import VirtualGpu
from ebbtide.train.optimizer_implementation import (
    IMPLEMENTATIONS,
    Implementation,
    implementation_costs,
    use_implementation,
)
from ebbtide.train.optimizer_twin import OptimizerError

MIB = 1 << 20
MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def _parameters(count: int = 3) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(4, 4 + i, generator=draw)) for i in range(count)]


def _steps(optimizer: Optimizer, steps: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(steps):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=draw)
        optimizer.step()
    return [p.detach().clone() for p in parameters]


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MAKERS)
def test_it_is_the_implementation_of_torch(name: str, implementation: Implementation) -> None:
    """The bits are those of an optimizer that was made so."""
    switched = MAKERS[name](_parameters())
    made = MAKERS[name](_parameters())
    for group in made.param_groups:
        group.update(foreach=implementation == "foreach", fused=implementation == "fused")
    with use_implementation(switched, implementation):
        assert _equal(_steps(switched), _steps(made))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("start", ["foreach", "fused", None])
def test_all_is_as_before_on_exit(start: str | None, implementation: Implementation) -> None:
    settings = {start: True} if start else {}
    optimizer = torch.optim.AdamW(_parameters(), **settings)  # type: ignore[arg-type]
    _steps(optimizer)
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    attributes = set(optimizer.__dict__)
    state = copy.deepcopy(optimizer.state_dict()["state"])
    for error in (False, True):
        try:
            with use_implementation(optimizer, implementation):
                group = optimizer.param_groups[0]
                assert (group["foreach"], group["fused"]) == (
                    implementation == "foreach",
                    implementation == "fused",
                )
                if error:
                    raise ValueError("mine")
        except ValueError:
            assert error
        after = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        assert after == groups
        assert set(optimizer.__dict__) == attributes
    for number, kept in optimizer.state_dict()["state"].items():
        assert kept.keys() == state[number].keys()
        assert _equal(list(kept.values()), list(state[number].values()))


def test_a_change_in_the_middle_goes_on() -> None:
    """Each implementation takes over the state of another."""
    optimizer, plain = (torch.optim.AdamW(_parameters(), lr=0.01) for _ in range(2))
    for implementation in (*IMPLEMENTATIONS, *IMPLEMENTATIONS):
        with use_implementation(optimizer, implementation):
            ours = _steps(optimizer)
    expected = [each for _ in range(6) for each in [_steps(plain)]][-1]
    for a, b in zip(ours, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert optimizer.state_dict()["state"][0]["step"] == 18


def test_one_within_another() -> None:
    optimizer = torch.optim.AdamW(_parameters())
    with use_implementation(optimizer, "fused"):
        with use_implementation(optimizer, "foreach"), use_implementation(optimizer, "foreach"):
            _steps(optimizer)
        assert optimizer.param_groups[0]["fused"] is True
        _steps(optimizer)
    assert optimizer.param_groups[0]["fused"] is None


def test_a_group_that_is_added_inside() -> None:
    optimizer = torch.optim.AdamW(_parameters())
    with use_implementation(optimizer, "fused"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        _steps(optimizer)
    assert [group["fused"] for group in optimizer.param_groups] == [None, None]


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_a_scaler_with_it(implementation: Implementation) -> None:
    """The fused kernel unscales by itself, the others let GradScaler do it."""
    results = []
    for on in (False, True):
        parameters = _parameters()
        optimizer = torch.optim.AdamW(parameters, fused=None if on else implementation == "fused")
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        with use_implementation(optimizer, implementation):
            for _ in range(2):
                scaler.scale(sum(p.square().sum() for p in parameters)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        results.append([p.detach() for p in parameters])
    assert _equal(*results)


def test_what_there_is_not_is_refused() -> None:
    parameters = _parameters()
    for optimizer, implementation, reason in (
        (torch.optim.RMSprop(parameters), "fused", "RMSprop has no fused implementation in torch"),
        (torch.optim.SparseAdam(parameters), "foreach", "SparseAdam has no foreach"),
        (torch.optim.AdamW(parameters), "quick", "No implementation is called 'quick'"),
        (
            torch.optim.AdamW(parameters, differentiable=True),
            "foreach",
            "is differentiable, which foreach is not",
        ),
        (
            torch.optim.AdamW([*parameters, nn.Parameter(torch.ones(2, dtype=torch.complex64))]),
            "fused",
            r"1 of 4 are not \(first: torch.complex64\)",
        ),
    ):
        before = copy.deepcopy(optimizer.param_groups)
        with (
            pytest.raises(OptimizerError, match=reason),
            use_implementation(optimizer, implementation),  # type: ignore[arg-type]
        ):
            pass
        assert str(optimizer.param_groups) == str(before)


def test_the_count_of_steps_is_where_each_has_it() -> None:
    """Fused has it on the GPU, the others on the host."""
    with VirtualGpu("a100-80gb"):
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> torch.device:
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            optimizer.step()
            count: Tensor = optimizer.state[model.weight]["step"]
            return count.device

        assert step().type == "cpu"
        with use_implementation(optimizer, "fused"):
            assert step().type == "cuda"
        assert step().type == "cpu"


def test_costs_of_adamw() -> None:
    """Temporaries of one parameter (two, and one that the loop has left), of all, or none."""
    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())
    costs = {cost.implementation: cost for cost in implementation_costs(optimizer)}
    assert list(costs) == ["plain", "foreach", "fused"]
    assert costs["plain"].temporary_bytes == pytest.approx(3 * 4 * MIB, abs=4096)
    assert costs["foreach"].temporary_bytes == pytest.approx(8 * 4 * MIB, abs=16384)
    assert costs["fused"].temporary_bytes == pytest.approx(0, abs=16384)
    for cost in costs.values():
        assert cost.state_bytes == pytest.approx(2 * 8 * 4 * MIB, abs=16384)
        assert cost.step_s > 0
        assert cost.reason == ""
    assert costs["fused"].step_s < 0.5 * min(costs["foreach"].step_s, costs["plain"].step_s)
    assert not optimizer.state
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert optimizer.param_groups[0]["fused"] is None


def test_costs_grow_with_the_parameters() -> None:
    small, large = (
        implementation_costs(torch.optim.AdamW([nn.Parameter(torch.empty(n, 1024))]))
        for n in (1024, 4096)
    )
    for a, b in zip(small[:2], large[:2], strict=True):
        assert b.temporary_bytes == pytest.approx(4 * a.temporary_bytes, rel=0.01)


def test_costs_of_what_there_is_not_have_a_reason() -> None:
    plain, foreach, fused = implementation_costs(torch.optim.RMSprop(_parameters()))
    assert plain.reason == foreach.reason == ""
    assert "RMSprop has no fused implementation" in fused.reason
    assert fused.temporary_bytes == fused.state_bytes == 0


def test_costs_of_frozen_parameters_are_none() -> None:
    trained, frozen = (nn.Parameter(torch.empty(1024, 1024)) for _ in range(2))
    frozen.requires_grad_(False)
    plain, _, _ = implementation_costs(torch.optim.AdamW([trained, frozen]))
    assert plain.state_bytes == pytest.approx(2 * 4 * MIB, abs=4096)


def test_costs_on_another_gpu() -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.empty(1024, 1024))])
    slow, fast = (implementation_costs(optimizer, gpu)[2] for gpu in ("l4", "h100-sxm"))
    assert slow.temporary_bytes == fast.temporary_bytes
    assert slow.step_s > fast.step_s
