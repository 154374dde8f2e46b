"""Operations over lists: one launch, the memory of their outputs, nothing for in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ebbtide.vgpu.ops.foreach import handler_for
from ebbtide.vgpu.virtual_gpu import VirtualGpu

Names = Callable[[], list[str]]
Sizes = Callable[[], list[int]]
aten = torch.ops.aten


def _lists() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    shapes = [(3,), (2, 4), (5,)]
    return tuple([torch.randn(s, device="cuda") for s in shapes] for _ in range(2))  # type: ignore[return-value]


def test_one_launch_and_one_output_each(gpu: VirtualGpu, op_names: Names, allocated: Sizes) -> None:
    left, right = _lists()
    op_names(), allocated()
    out = torch._foreach_add(left, right)
    assert op_names() == ["_foreach_add"]
    assert allocated() == [12, 32, 20]
    assert [tuple(t.shape) for t in out] == [(3,), (2, 4), (5,)]


def test_in_place_takes_nothing(gpu: VirtualGpu, op_names: Names, allocated: Sizes) -> None:
    left, right = _lists()
    op_names(), allocated()
    torch._foreach_mul_(left, 2.0)
    torch._foreach_add_(left, right, alpha=3)
    torch._foreach_zero_(left)
    assert op_names() == ["_foreach_mul_", "_foreach_add_", "_foreach_zero_"]
    assert allocated() == []


def test_norms_are_numbers(gpu: VirtualGpu) -> None:
    left, _ = _lists()
    norms = torch._foreach_norm(left)
    assert [tuple(norm.shape) for norm in norms] == [()] * 3


def test_outputs_are_promoted_and_keep_strides(gpu: VirtualGpu) -> None:
    half = [torch.randn(4, 6, device="cuda", dtype=torch.half).t()]
    full = [torch.randn(6, 4, device="cuda")]
    (out,) = torch._foreach_add(half, full)
    assert out.dtype is torch.float32
    (same,) = torch._foreach_mul(half, 2.0)
    assert same.stride() == half[0].stride()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_adamw_in_few_launches(
    gpu: VirtualGpu, op_names: Names, allocated: Sizes, fused: bool
) -> None:
    weights = [torch.randn(8, 8, device="cuda", requires_grad=True) for _ in range(50)]
    optimizer = torch.optim.AdamW(weights, fused=fused or None)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    op_names(), allocated()
    optimizer.step()
    names = op_names()
    assert len(names) < 20
    assert any("_fused_adamw" in name for name in names) is fused
    # Fused: no memory at all; foreach: the square root of every second moment at once.
    assert sum(allocated()) == (0 if fused else 50 * 256)


def test_known_step_counts_are_followed(gpu: VirtualGpu) -> None:
    weights = [torch.zeros(2, device="cuda", requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.Adam(weights, capturable=True)
    for _ in range(4):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    steps = [float(state["step"]) for state in optimizer.state.values()]
    assert steps == [4.0] * 3


@pytest.mark.parametrize(
    ("func", "handled"),
    [
        (aten._foreach_add.List, True),
        (aten._foreach_add_.Scalar, True),
        (aten._fused_adam_.default, True),
        (aten.add.Tensor, False),
        (aten.cat.default, False),
    ],
)
def test_which_are_handled(func: object, handled: bool) -> None:
    assert (handler_for(func) is not None) is handled
