"""`scaled_dot_product_attention` reaches CUDA's choice in every mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from ebbtide.vgpu.virtual_gpu import VirtualGpu

Names = Callable[[], list[str]]


@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [
        (torch.float16, "_scaled_dot_product_flash_attention"),
        (torch.bfloat16, "_scaled_dot_product_flash_attention"),
        (torch.float32, "_scaled_dot_product_efficient_attention"),
    ],
)
def test_the_kernel_by_dtype(
    gpu: VirtualGpu, op_names: Names, context: Any, dtype: torch.dtype, kernel: str
) -> None:
    query = torch.randn(2, 4, 32, 64, device="cuda", dtype=dtype)
    op_names()
    with context():
        out = sdpa(query, query, query, is_causal=True)
    assert op_names() == [kernel]
    assert (out.shape, out.dtype) == (query.shape, dtype)


def test_autocast_takes_it_to_half(gpu: VirtualGpu, op_names: Names) -> None:
    query = torch.randn(2, 4, 32, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        out = sdpa(query, query, query)
    assert out.dtype is torch.float16
    assert "_scaled_dot_product_flash_attention" in op_names()
    out.sum().backward()
    assert "_scaled_dot_product_flash_attention_backward" in op_names()
    assert query.grad is not None
    assert query.grad.dtype is torch.float32


def test_flash_keeps_no_square(gpu: VirtualGpu) -> None:
    query = torch.randn(1, 8, 4096, 64, device="cuda", dtype=torch.half, requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = sdpa(query, query, query)
    square = 2 * 8 * 4096 * 4096
    assert torch.cuda.max_memory_allocated() - before < square / 8
    assert out.is_cuda


def test_on_the_cpu_it_is_real(gpu: VirtualGpu) -> None:
    query = torch.randn(1, 2, 4, 8)
    out = sdpa(query, query, query)
    assert type(out) is torch.Tensor
    assert not out.is_cuda
