"""The `snap-wed-*` rows: a decoder with RoPE, RMSNorm and SwiGLU, and its training step.

Rebuilt from the stacks and sizes in the snapshots (Wedsonlin/assignment2-systems @
87b08641, MIT). What matters for memory and is kept: every projection is an einsum whose
weight is a permuted view; softmax and cross-entropy are made of elementary operations;
which local names hold a tensor until a function returns; the optimizer asks its state for
a value with a zero tensor as the default, so the zeros are allocated at every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .meter import Meter

VOCAB = 10_000
WARM_UPS = 5


class Projection(nn.Module):
    """``y = x W^T`` as an einsum; `weight` is (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., d_out)."""
        return torch.einsum("...a,ba->...b", x, self.weight)


class Embedding(nn.Module):
    """Rows of `weight` (vocabulary, d) by plain indexing."""

    def __init__(self, vocab: int, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, d))

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, seq) integers to (batch, seq, d)."""
        return self.weight[ids, :]


class Norm(nn.Module):
    """RMS norm in fp32, whatever comes in."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) to (..., d) of the same dtype."""
        dtype = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(dtype)


class Rope(nn.Module):
    """Rotary positions from one table of (2, context, d_head / 2)."""

    table: Tensor

    def __init__(self, context: int, d_head: int) -> None:
        super().__init__()
        steps = torch.arange(0, d_head, 2) / d_head
        angles = torch.outer(torch.arange(context).float(), 10_000.0**-steps)
        table = torch.stack((torch.cos(angles), torch.sin(angles)))
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, heads, seq, d_head), rotated."""
        x1, x2 = x.unflatten(-1, (-1, 2)).movedim(-1, 0).unbind(0)
        cos, sin = self.table[:, : x.size(-2), :].unbind(0)
        first = cos * x1 - sin * x2
        second = sin * x1 + cos * x2
        return torch.concat((first, second), dim=-1)


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension, out of elementary operations."""
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    raised = torch.exp(shifted)
    return raised / torch.sum(raised, dim=-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    """Over the last dimension, out of elementary operations."""
    top = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - top
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log likelihood of `targets` (batch, seq)."""
    negative = -log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """(batch, heads, seq, d_head) each; `mask` is True where a key is seen."""
    scores = torch.einsum("...ab,...cb->...ac", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...ab,...bc->...ac", weights, v)


class SelfAttention(nn.Module):
    """Causal, with the mask made anew at every call."""

    def __init__(self, d: int, heads: int, rope: Rope) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = Projection(d, d)
        self.k_proj = Projection(d, d)
        self.v_proj = Projection(d, d)
        self.output_proj = Projection(d, d)
        self.rope = rope

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        q = self.rope(q)
        k = self.rope(k)
        steps = torch.arange(x.size(1), device=x.device)
        mask = (steps[:, None] >= steps[None, :])[None, ...]
        out = attention(q, k, v, mask)
        out = out.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1).contiguous()
        result: Tensor = self.output_proj(out)
        return result


class SwiGlu(nn.Module):
    """``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, d: int, d_ff: int) -> None:
        super().__init__()
        self.w1 = Projection(d, d_ff)
        self.w2 = Projection(d_ff, d)
        self.w3 = Projection(d, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        result: Tensor = self.w2(_silu(self.w1(x)) * self.w3(x))
        return result


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    """Attention, then the feed-forward part, each behind its norm."""

    def __init__(self, d: int, heads: int, d_ff: int, rope: Rope) -> None:
        super().__init__()
        self.attn = SelfAttention(d, heads, rope)
        self.ffn = SwiGlu(d, d_ff)
        self.ln1 = Norm(d)
        self.ln2 = Norm(d)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        attended = self.attn(self.ln1(x))
        middle: Tensor = x + attended
        fed = self.ffn(self.ln2(middle))
        return middle + fed


class Decoder(nn.Module):
    """The language model; the head is not tied to the embedding."""

    def __init__(self, context: int, d: int, heads: int, d_ff: int, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(VOCAB, d)
        self.rope = Rope(context, d // heads)
        self.layers = nn.ModuleList(Block(d, heads, d_ff, self.rope) for _ in range(layers))
        self.ln_final = Norm(d)
        self.head = Projection(d, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, seq) integers to logits (batch, seq, vocabulary)."""
        embedded = self.embedding(ids)  # its name holds it until the logits are there
        x = embedded
        for layer in self.layers:
            x = layer(x)
        x = self.ln_final(x)
        logits: Tensor = self.head(x)
        return logits


class LoopAdamW(torch.optim.Optimizer):
    """AdamW, one parameter after another, out of place."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                t = state.get("t", 1)
                rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                p.data -= lr * group["decay"] * p.data
                grad = p.grad.data
                old_m = state.get("m", torch.zeros_like(grad))
                old_v = state.get("v", torch.zeros_like(grad))
                state["m"] = beta1 * old_m + (1 - beta1) * grad
                state["v"] = beta2 * old_v + (1 - beta2) * grad**2
                p.data -= rate * state["m"] / (torch.sqrt(state["v"]) + group["eps"])
                state["t"] = t + 1


def build(
    context: int, *, d: int = 1024, heads: int = 16, d_ff: int = 4096, layers: int = 24
) -> Decoder:
    """The "medium" decoder of the rows, on the CPU and without initial values."""
    return Decoder(context, d, heads, d_ff, layers)


def train(model: Decoder, batch: int, seq: int, *, amp: bool, meter: Meter) -> None:
    """Five steps to warm up, then the recorded one; the peak is that of the recorded step."""
    device = model.head.weight.device
    optimizer = LoopAdamW(model.parameters())
    shapes = ((WARM_UPS, batch, seq), (1, batch, seq), (WARM_UPS, batch, seq), (1, batch, seq))
    ids, last_ids, targets, last_targets = (
        torch.randint(0, VOCAB, shape, device=device) for shape in shapes
    )
    model.train()
    for i in range(WARM_UPS):
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            output = model(ids[i])
            loss = cross_entropy(output, targets[i])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    del output, loss
    optimizer.zero_grad(set_to_none=True)
    meter.reset_peak()
    with torch.autocast(device.type, torch.bfloat16, enabled=amp):
        output = model(last_ids[0])
        loss = cross_entropy(output, last_targets[0])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def infer(model: Decoder, batch: int, seq: int, *, amp: bool, meter: Meter) -> None:
    """Five forward passes to warm up, then the recorded one, in inference mode."""
    device = model.head.weight.device
    ids = torch.randint(0, VOCAB, (WARM_UPS, batch, seq), device=device)
    last_ids = torch.randint(0, VOCAB, (1, batch, seq), device=device)
    model.eval()
    with torch.inference_mode():
        for i in range(WARM_UPS):
            with torch.autocast(device.type, torch.bfloat16, enabled=amp):
                model(ids[i])
        meter.reset_peak()
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            model(last_ids[0])
