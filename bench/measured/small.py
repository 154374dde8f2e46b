"""Rows of a few operations: attention before backward, one layer a hundred times, contexts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .meter import Meter


class HeldAttention(nn.Module):
    """`cs336-attn-*`: attention over tensors that it holds (MAGMA27/assignment2-systems)."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().__init__()
        self.q, self.k, self.v = q, k, v

    def forward(self) -> Tensor:
        """(batch, seq, d)."""
        scores = torch.matmul(self.q, self.k.transpose(-2, -1)) / math.sqrt(self.q.size(-1))
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights, self.v)


def attention_before_backward(
    batch: int, seq: int, d: int, device: torch.device, meter: Meter
) -> None:
    """`memory_allocated()` between forward and backward, after five warm-ups.

    The leaves are on the CPU; what is on the device are their copies.
    """
    q, k, v = (torch.randn(batch, seq, d, requires_grad=True).to(device) for _ in range(3))
    attention = HeldAttention(q, k, v)
    for _ in range(5):
        output = attention()
        output.sum().backward()
    for _ in range(2):
        output = attention()
        meter.note("before backward", meter.allocated())
        output.sum().backward()


def repeated_linear(batch: int, d: int, device: torch.device, meter: Meter) -> None:
    """`nbv-144-*`: one linear layer applied a hundred times, forward with gradients."""
    layer = nn.Linear(d, d, device=device)
    x = torch.randn(batch, d, device=device)
    for _ in range(100):
        x = layer(x)
    meter.note("after forward", meter.allocated())


def tiny_tensor(device: torch.device) -> None:
    """`ctx-*` and `hf-bertlarge-ctx`: a context and one small tensor."""
    torch.ones((1, 1)).to(device)


class FlashDecoder(nn.Module):
    """`xt-325-*`: pre-norm blocks of attention without biases and a 4x feed-forward part.

    The defaults of x-transformers' `Decoder` (dim_head 64, causal, ff_mult 4, GELU), as its
    documentation states them.
    """

    def __init__(self, dim: int, depth: int, heads: int, head: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim, bias=False) for _ in range(2 * depth + 1))
        self.qkv = nn.ModuleList(
            nn.ModuleList(nn.Linear(dim, heads * head, bias=False) for _ in range(3))
            for _ in range(depth)
        )
        self.out = nn.ModuleList(nn.Linear(heads * head, dim, bias=False) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(dim, 4 * dim) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(4 * dim, dim) for _ in range(depth))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, seq, dim); `mask` is (batch, seq), True where a key counts."""
        seen = None
        if mask is not None:
            steps = torch.arange(x.shape[1], device=x.device)
            causal = steps[:, None] >= steps[None, :]
            seen = mask[:, None, None, :] & causal
            seen = seen.expand(-1, self.heads, -1, -1)
        for i, projections in enumerate(self.qkv):
            assert isinstance(projections, nn.ModuleList)
            normed = self.norms[2 * i](x)
            q, k, v = (
                p(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in projections
            )
            out = nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, is_causal=seen is None
            )
            x = x + self.out[i](out.transpose(1, 2).flatten(2))
            x = x + self.down[i](nn.functional.gelu(self.up[i](self.norms[2 * i + 1](x))))
        result: Tensor = self.norms[-1](x)
        return result


def flash_decoder(batch: int, seq: int, *, masked: bool, device: torch.device) -> None:
    """Forward of `FlashDecoder` with gradients."""
    model = FlashDecoder(64, 8, 8).to(device)
    x = torch.randn(batch, seq, 64, device=device)
    mask = torch.ones(batch, seq, dtype=torch.bool, device=device) if masked else None
    model(x, mask)
