"""`_grouped_mm` of every dtype: the shapes of torch's own rule, and mixtures of experts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.vgpu.ops.grouped import output_shape
from ebbtide.vgpu.virtual_gpu import VirtualGpu

if not hasattr(torch.ops.aten, "_grouped_mm"):
    pytest.skip("torch has no _grouped_mm", allow_module_level=True)

SIZES = st.integers(1, 6).map(lambda n: 8 * n)


@settings(max_examples=40)
@given(st.booleans(), st.booleans(), st.integers(1, 4), SIZES, SIZES, SIZES)
def test_shapes_are_those_of_the_meta_kernel(
    stacked_left: bool, stacked_right: bool, groups: int, m: int, n: int, k: int
) -> None:
    left = (groups, m, k) if stacked_left else (m, k)
    right = (groups, k, n) if stacked_right else (k, n)
    needs_offsets = not (stacked_left and stacked_right)
    a = torch.empty(left, dtype=torch.bfloat16, device="meta")
    # The second operand is column-major, as the operator asks.
    b = torch.empty((*right[:-2], n, k), dtype=torch.bfloat16, device="meta").mT
    offsets = torch.empty(groups, dtype=torch.int32, device="meta") if needs_offsets else None
    expected = torch.ops.aten._grouped_mm(a, b, offsets)
    assert output_shape(left, right, groups) == tuple(expected.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_experts_in_every_dtype(dtype: torch.dtype) -> None:
    with VirtualGpu("l4"):
        x = torch.randn(64, 32, device="cuda", dtype=dtype, requires_grad=True)
        weight = torch.randn(4, 48, 32, device="cuda", dtype=dtype, requires_grad=True)
        ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device="cuda")
        before = torch.cuda.memory_allocated()
        out = torch._grouped_mm(x, weight.mT, offs=ends)
        assert (out.shape, out.dtype, out.stride()) == ((64, 48), dtype, (48, 1))
        assert torch.cuda.memory_allocated() - before == 64 * 48 * dtype.itemsize
        (out * out).sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape
        assert weight.grad is not None and weight.grad.shape == weight.shape


def test_rows_are_padded_to_16_bytes() -> None:
    with VirtualGpu("l4"):
        x = torch.randn(8, 32, device="cuda")
        weight = torch.randn(2, 32, 5, device="cuda")
        ends = torch.tensor([4, 8], dtype=torch.int32, device="cuda")
        assert torch._grouped_mm(x, weight, offs=ends).stride() == (8, 1)
