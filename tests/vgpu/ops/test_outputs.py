"""Shapes that PyTorch has no rule for: against real CPU runs and the CUDA sources."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ebbtide.vgpu.virtual_gpu import VirtualGpu

Sizes = Callable[[], list[int]]
Names = Callable[[], list[str]]


def test_a_gru_cell_saves_five_values_a_unit(
    gpu: VirtualGpu, allocated: Sizes, op_names: Names
) -> None:
    cell, data = nn.GRUCell(8, 16).cuda(), torch.randn(3, 8, device="cuda")
    state = torch.randn(3, 16, device="cuda", requires_grad=True)
    op_names(), allocated()
    out = cell(data, state)
    sizes = allocated()
    gates = 4 * 3 * 48
    assert [size for size in sizes if size < 1 << 20] == [gates, gates, 4 * 3 * 80, 4 * 3 * 16]
    assert op_names()[-1] == "_thnn_fused_gru_cell"
    out.sum().backward()
    assert "_thnn_fused_gru_cell_backward" in op_names()
    assert state.grad is not None
    assert state.grad.shape == state.shape
    assert all(p.grad is not None and p.grad.shape == p.shape for p in cell.parameters())


@pytest.mark.parametrize("rows", [True, False])
def test_ctc_keeps_alpha(gpu: VirtualGpu, allocated: Sizes, rows: bool) -> None:
    steps, batch, classes, lengths = 12, 3, 7, [4, 3, 2]
    scores = torch.randn(steps, batch, classes, device="cuda", requires_grad=True)
    targets = torch.ones((batch, 5) if rows else (sum(lengths),), dtype=torch.long, device="cuda")
    log_probs = scores.log_softmax(-1)
    allocated()
    loss = F.ctc_loss(log_probs, targets, [steps] * batch, lengths)
    longest = 5 if rows else 4
    assert 4 * batch * steps * (2 * longest + 1) in allocated()
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.shape == scores.shape


def test_ctc_by_cudnn(gpu: VirtualGpu, op_names: Names) -> None:
    scores = torch.randn(12, 3, 7, device="cuda").log_softmax(-1)
    targets = torch.ones(9, dtype=torch.int32)
    F.ctc_loss(scores, targets, [12] * 3, [4, 3, 2])
    assert "_cudnn_ctc_loss" in op_names()
    F.ctc_loss(scores, targets, [12, 12, 11], [4, 3, 2])
    assert "_cudnn_ctc_loss" not in op_names()
    with torch.backends.cudnn.flags(enabled=False):
        F.ctc_loss(scores, targets, [12] * 3, [4, 3, 2])
    assert "_cudnn_ctc_loss" not in op_names()


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_margin_losses(gpu: VirtualGpu, loss: Callable[..., torch.Tensor]) -> None:
    scores = torch.randn(6, 5, device="cuda", requires_grad=True)
    shape = (6,) if loss is F.multi_margin_loss else (6, 5)
    loss(scores, torch.zeros(shape, dtype=torch.long, device="cuda")).backward()
    assert scores.grad is not None
    assert scores.grad.shape == scores.shape
    assert gpu.guesses == {}


@pytest.mark.parametrize("packed", [True, False])
def test_cudnn_samples_a_grid(
    gpu: VirtualGpu, allocated: Sizes, op_names: Names, packed: bool
) -> None:
    image = torch.randn(2, 5, 8, 8, device="cuda", requires_grad=True)
    grid = torch.rand(2, 4, 6, 2, device="cuda") if packed else None
    if grid is None:
        grid = torch.rand(2, 2, 4, 6, device="cuda").permute(0, 2, 3, 1)
    grid.requires_grad_()
    op_names(), allocated()
    out = F.grid_sample(image, grid, align_corners=True)
    assert tuple(out.shape) == (2, 5, 4, 6)
    copy = [] if packed else [4 * grid.numel()]
    assert allocated() == [*copy, 4 * out.numel()]
    assert op_names()[-1] == "cudnn_grid_sampler"
    out.sum().backward()
    assert "cudnn_grid_sampler_backward" in op_names()
    assert image.grad is not None
    assert grid.grad is not None
    assert (image.grad.shape, grid.grad.shape) == (image.shape, grid.shape)
