"""The `snap-sil-*` rows: naive attention from an empty allocator, and a decoder's forward.

Rebuilt from the stacks and sizes in the snapshots (silmont2000/assignment2-systems @
75d09aad, MIT).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .cs336_wed import VOCAB, Embedding, Projection
from .meter import Meter


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension, out of elementary operations."""
    top = x.max(dim=-1, keepdim=True).values
    raised = torch.exp(x - top)
    total = torch.sum(raised, dim=-1, keepdim=True)
    return raised / total


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """(..., seq, d) each; `mask` is True where a key is seen."""
    scores = torch.einsum("...ab,...cb->...ac", q, k)
    scores = scores / (q.shape[-1] ** 0.5)
    if mask is not None:
        hidden = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(mask == False, hidden)  # noqa: E712  (an operation on the GPU)
    weights = softmax(scores)
    return torch.einsum("...ac,...cb->...ab", weights, v)


def attend_and_back(batch: int, seq: int, d: int, device: torch.device) -> None:
    """Forward, sum and backward, on leaves made on `device`."""
    q = torch.randn(batch, seq, d, device=device, requires_grad=True)
    k = torch.randn(batch, seq, d, device=device, requires_grad=True)
    v = torch.randn(batch, seq, d, device=device, requires_grad=True)
    output = attention(q, k, v)
    loss = output.sum()
    loss.backward()  # type: ignore[no-untyped-call]


class Norm(nn.Module):
    """RMS norm whose squares are summed by an einsum."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        squares = torch.einsum("...a,...a->...", x, x)
        squares = squares / x.shape[-1] + 1e-5
        root = torch.sqrt(squares)
        return x / root.unsqueeze(-1) * self.weight


class Rope(nn.Module):
    """Rotary positions, with two tables of (context, d_head) in every layer."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, d_head: int) -> None:
        super().__init__()
        angles = torch.outer(
            torch.arange(context).float(), 10_000.0 ** -torch.linspace(0, 1, d_head)
        )
        self.register_buffer("cos", torch.cos(angles))
        self.register_buffer("sin", torch.sin(angles))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(batch, heads, seq, d_head), rotated."""
        cos = self.cos[positions]
        sin = self.sin[positions]
        return x * cos + _rotated(x) * sin


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class SelfAttention(nn.Module):
    """Causal, with the mask made anew at every call."""

    def __init__(self, d: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = Projection(d, d)
        self.k_proj = Projection(d, d)
        self.v_proj = Projection(d, d)
        self.output_proj = Projection(d, d)
        self.rope = Rope(context, d // heads)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        q = self._heads(self.q_proj(x))
        k = self._heads(self.k_proj(x))
        v = self._heads(self.v_proj(x))
        q = self.rope(q, positions)
        k = self.rope(k, positions)
        seq = x.shape[1]
        mask = torch.tril(torch.ones(seq, seq, device=x.device)).bool()
        out = attention(q, k, v, mask)
        out = out.transpose(1, 2).reshape(x.shape[0], seq, -1)
        result: Tensor = self.output_proj(out)
        return result

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class SwiGlu(nn.Module):
    """``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, d: int, d_ff: int) -> None:
        super().__init__()
        self.w1 = Projection(d, d_ff)
        self.w2 = Projection(d_ff, d)
        self.w3 = Projection(d, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        gate = self.w1(x)
        value = self.w3(x)
        result: Tensor = self.w2(gate * torch.sigmoid(gate) * value)
        return result


class Block(nn.Module):
    """Attention, then the feed-forward part; its names hold all it made until it returns."""

    def __init__(self, d: int, heads: int, d_ff: int, context: int) -> None:
        super().__init__()
        self.ln1 = Norm(d)
        self.attn = SelfAttention(d, heads, context)
        self.ln2 = Norm(d)
        self.ffn = SwiGlu(d, d_ff)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        first = self.ln1(x)
        attended = self.attn(first, positions)
        middle: Tensor = x + attended
        second = self.ln2(middle)
        fed = self.ffn(second)
        return middle + fed


class Decoder(nn.Module):
    """The language model; the head is not tied to the embedding."""

    def __init__(self, context: int, d: int, heads: int, d_ff: int, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(VOCAB, d)
        self.layers = nn.ModuleList(Block(d, heads, d_ff, context) for _ in range(layers))
        self.ln_final = Norm(d)
        self.head = Projection(d, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, seq) integers to logits (batch, seq, vocabulary)."""
        x = self.embedding(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)
        for layer in self.layers:
            x = layer(x, positions)
        normed = self.ln_final(x)
        logits: Tensor = self.head(normed)
        return logits


def build(
    context: int, *, d: int = 768, heads: int = 12, d_ff: int = 3072, layers: int = 12
) -> Decoder:
    """The "small" decoder of the rows, on the CPU and without initial values."""
    return Decoder(context, d, heads, d_ff, layers)


def forward_only(model: Decoder, batch: int, seq: int, meter: Meter) -> None:
    """One and ten forward passes without gradients; the recorded one is among the ten."""
    device = model.head.weight.device
    ids = torch.randint(0, VOCAB, (batch, seq)).to(device)
    with torch.no_grad():
        for _ in range(11):
            model(ids)
        meter.reset_peak()
        model(ids)
