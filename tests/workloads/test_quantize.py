"""Weights in few bits: their bytes, their values, and gradients through them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ebbtide.workloads.options import QUANTIZATIONS
from ebbtide.workloads.quantize import NF4, NF4_BLOCK, QuantizedLinear, pack, quantize

BYTES_A_WEIGHT = {"int8": 1.0, "fp8": 1.0, "nf4": 0.5}


def _scale_bytes(kind: str, rows: int, columns: int) -> int:
    return {"int8": 4 * rows, "fp8": 4, "nf4": 4 * -(-rows * columns // NF4_BLOCK)}[kind]


@settings(max_examples=25)
@given(rows=st.integers(1, 40), columns=st.integers(1, 70), kind=st.sampled_from(QUANTIZATIONS))
def test_bytes_are_those_of_the_format(rows: int, columns: int, kind: str) -> None:
    layer = QuantizedLinear(nn.Linear(columns, rows, bias=False), kind)
    held = sum(b.numel() * b.element_size() for b in layer.buffers())
    weights = -(-rows * columns // 2) if kind == "nf4" else rows * columns
    assert held == weights + _scale_bytes(kind, rows, columns)
    assert not list(layer.parameters())


@settings(max_examples=25)
@given(rows=st.integers(1, 20), columns=st.integers(1, 70), kind=st.sampled_from(QUANTIZATIONS))
def test_what_comes_back_is_near(rows: int, columns: int, kind: str) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    layer = QuantizedLinear(nn.Linear(columns, rows, bias=False), kind)
    layer.packed, layer.scale = pack(weight, kind)
    wide = layer.wide(torch.float32)
    # Half a step of the format at its widest: 1/127, 2**-4 relative, and NF4's widest gap.
    tolerance = {"int8": 0.5 / 127, "fp8": 2**-4, "nf4": 0.16}[kind] * weight.abs().max()
    assert wide.shape == weight.shape
    assert (wide - weight).abs().max() <= tolerance * 1.001


def test_nf4_keeps_its_own_levels() -> None:
    """Blocks that consist of the format's 16 levels come back exactly."""
    weight = torch.tensor(NF4).repeat(4)[None] * 3.5
    layer = QuantizedLinear(nn.Linear(64, 1, bias=False), "nf4")
    layer.packed, layer.scale = pack(weight, "nf4")
    torch.testing.assert_close(layer.wide(torch.float32), weight)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_the_layer_multiplies_with_the_widened_weight(kind: str) -> None:
    linear = nn.Linear(16, 8)
    layer = QuantizedLinear(linear, kind)
    x = torch.randn(3, 16, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, nn.functional.linear(x, layer.wide(torch.float32), linear.bias))
    grad = torch.randn_like(y)
    y.backward(grad)
    torch.testing.assert_close(x.grad, grad @ layer.wide(torch.float32))


def test_backward_keeps_no_widened_weight() -> None:
    layer = QuantizedLinear(nn.Linear(64, 64, bias=False), "nf4")
    saved: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.shape) or t, lambda t: t
    ):
        layer(torch.randn(2, 64, requires_grad=True)).sum().backward()
    assert torch.Size([64, 64]) not in saved


def test_autocast_decides_the_dtype() -> None:
    layer = QuantizedLinear(nn.Linear(16, 8), "int8")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(2, 16)).dtype is torch.bfloat16
    assert layer(torch.randn(2, 16)).dtype is torch.float32


class WithHead(nn.Module):
    """An embedding, a layer and an output head, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        self.lm_head = nn.Linear(8, 10)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


def test_embedding_and_head_stay() -> None:
    model = WithHead()
    assert quantize(model, "int8", torch.bfloat16) == 1
    assert isinstance(model.block[0], QuantizedLinear)
    assert type(model.lm_head) is nn.Linear and model.lm_head.weight.dtype is torch.bfloat16
    assert not any(p.requires_grad for p in model.parameters())
