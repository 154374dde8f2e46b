"""LBFGS: the history of a long run, from a few steps."""

from __future__ import annotations

import pytest
import torch

from ebbtide.vgpu.virtual_gpu import VirtualGpu

SIDE = 512
VECTOR = 4 * SIDE * SIDE


def _held(gpu: VirtualGpu, steps: int, **settings: object) -> int:
    """Bytes that are left of `steps` steps, beside the weights and one gradient."""
    layer = torch.nn.Linear(SIDE, SIDE, bias=False, device="cuda")
    optimizer = torch.optim.LBFGS(layer.parameters(), **settings)  # type: ignore[arg-type]
    x = torch.randn(4, SIDE, device="cuda")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        return loss

    before = gpu.memory.memory_allocated()
    for _ in range(steps):
        optimizer.step(closure)
    return gpu.memory.memory_allocated() - before - VECTOR


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("history", [1, 10, 100])
def test_from_the_second_step_on_the_history_is_full(history: int, search: str | None) -> None:
    with VirtualGpu("l4") as gpu:
        held = _held(gpu, 2, history_size=history, line_search_fn=search)
    # Beside the two lists: the last direction, and the last gradient. Workspaces once.
    full = (2 * history + 2) * VECTOR
    assert full <= held <= full + 40 * 1024**2
    text, count = gpu.guesses["lbfgs"]
    assert f"history of {history} steps" in text and count == 1


def test_the_first_step_has_none_and_later_ones_no_more() -> None:
    held = []
    for steps in (1, 2, 6):
        with VirtualGpu("l4") as gpu:
            held.append(_held(gpu, steps, history_size=20))
        assert ("lbfgs" in gpu.guesses) == (steps > 1)
    assert held[1] - held[0] >= 38 * VECTOR
    assert abs(held[2] - held[1]) < VECTOR


def test_parameters_on_the_cpu_are_left_alone() -> None:
    with VirtualGpu("l4") as gpu:
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.LBFGS([weight], history_size=7)
        for _ in range(3):
            optimizer.step(lambda: (weight * 2).sum())
    assert "lbfgs" not in gpu.guesses


def test_the_optimizer_is_as_it_was_afterwards() -> None:
    before = torch.optim.LBFGS.step
    with VirtualGpu("l4"):
        assert torch.optim.LBFGS.step is not before
    assert torch.optim.LBFGS.step is before
