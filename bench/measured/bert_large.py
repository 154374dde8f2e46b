"""The `hf-bertlarge-*` rows: BERT-large under the Trainer of its time.

The source (perf_train_gpu_one.mdx of Transformers @ 0016acf7) ran the Trainer of version
4.11 or so on torch 1.10. Today's classes do other things, so that time's are written out:
eager attention; AdamW and Adafactor of Transformers, one parameter after another; gradients
cleared to zero instead of dropped; gradient norm of every parameter, then clipping;
reentrant checkpointing of each layer; autocast around the loss alone. torch of then kept
softmax's input for its backward too (pytorch/pytorch#49600, ended by #65242 in 1.11).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .meter import Meter

STEPS = 3


class Embeddings(nn.Module):
    """Words, positions and token types, normalised."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        d = config["hidden_size"]
        self.words = nn.Embedding(config["vocab_size"], d, padding_idx=0)
        self.positions = nn.Embedding(config["max_position_embeddings"], d)
        self.types = nn.Embedding(config["type_vocab_size"], d)
        self.norm = nn.LayerNorm(d, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("ids", torch.arange(config["max_position_embeddings"])[None])
        self.register_buffer("zeros", torch.zeros_like(self.ids), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, seq) integers to (batch, seq, d)."""
        batch, seq = ids.shape
        words = self.words(ids)
        types = self.types(self.zeros[:, :seq].expand(batch, seq))
        out = words + types
        out += self.positions(self.ids[:, :seq])
        result: Tensor = self.dropout(self.norm(out))
        return result


class OldSoftmax(torch.autograd.Function):
    """Softmax over the last dimension as torch 1.10 had it: input and output are kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.softmax(x, dim=-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, out = ctx.saved_tensors
        return torch._softmax_backward_data(grads[0], out, -1, x.dtype)


class SelfAttention(nn.Module):
    """Scores, softmax and dropout, all of (batch, heads, seq, seq)."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d, d)
        self.key = nn.Linear(d, d)
        self.value = nn.Linear(d, d)
        self.dropout = nn.Dropout(0.1)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        mixed = self.query(hidden)
        key = self._split(self.key(hidden))
        value = self._split(self.value(hidden))
        query = self._split(mixed)
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores / math.sqrt(query.shape[-1])
        scores = scores + mask
        # Autocast computes a softmax in fp32, and so its saved input is fp32.
        weights: Tensor = OldSoftmax.apply(scores.float())  # type: ignore[no-untyped-call]
        weights = self.dropout(weights)
        context = torch.matmul(weights, value)
        context = context.permute(0, 2, 1, 3).contiguous()
        return context.view(*context.shape[:-2], -1)


class Residual(nn.Module):
    """A linear layer, dropout, and the norm of the sum with what came in."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_in, d_out)
        self.norm = nn.LayerNorm(d_out, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """(batch, seq, d_in) to (batch, seq, d_out)."""
        hidden = self.dense(hidden)
        hidden = self.dropout(hidden)
        result: Tensor = self.norm(hidden + before)
        return result


class Layer(nn.Module):
    """Attention and the feed-forward part."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        d, inner = config["hidden_size"], config["intermediate_size"]
        self.attention = SelfAttention(d, config["num_attention_heads"])
        self.attention_output = Residual(d, d)
        self.intermediate = nn.Linear(d, inner)
        self.output = Residual(inner, d)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(batch, seq, d) to the same."""
        attended = self.attention_output(self.attention(hidden, mask), hidden)
        inner = nn.functional.gelu(self.intermediate(attended))
        result: Tensor = self.output(inner, attended)
        return result


class BertClassifier(nn.Module):
    """BERT with a pooled two-class head; returns the loss."""

    def __init__(self, config: dict[str, Any], *, checkpointing: bool) -> None:
        super().__init__()
        d = config["hidden_size"]
        self.checkpointing = checkpointing
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.pooler = nn.Linear(d, d)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(d, 2)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over `labels` (batch,)."""
        mask = torch.ones(ids.shape, device=ids.device)[:, None, None, :]
        mask = (1.0 - mask) * -10000.0
        hidden = self.embeddings(ids)
        for layer in self.layers:
            if self.checkpointing:
                hidden = checkpoint(layer, hidden, mask, use_reentrant=True)
            else:
                hidden = layer(hidden, mask)
        pooled = torch.tanh(self.pooler(hidden[:, 0]))
        logits = self.classifier(self.dropout(pooled))
        return nn.functional.cross_entropy(logits.view(-1, 2), labels.view(-1))


class OldAdamW:
    """AdamW as Transformers 4.11 had it: a loop, with one temporary of a parameter's size."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.params = list(params)
        self.state: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for p in self.params:
            if p.grad is None:
                continue
            grad = p.grad.data
            if p not in self.state:
                self.state[p] = (torch.zeros_like(p.data), torch.zeros_like(p.data))
            mean, square = self.state[p]
            mean.mul_(0.9).add_(grad, alpha=0.1)
            square.mul_(0.999).addcmul_(grad, grad, value=0.001)
            denominator = square.sqrt().add_(1e-6)
            p.data.addcdiv_(mean, denominator, value=-5e-5)


class OldAdafactor:
    """Adafactor as the Trainer of 4.11 used it: factored, no first moment, fixed rate."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.params = list(params)
        self.state: dict[nn.Parameter, tuple[Tensor, ...]] = {}

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for p in self.params:
            if p.grad is not None:
                self._update(p, p.grad.data)

    def _update(self, p: nn.Parameter, grad: Tensor) -> None:
        factored = grad.dim() >= 2
        if p not in self.state:
            shape = grad.shape
            self.state[p] = (
                (torch.zeros(shape[:-1]).to(grad), torch.zeros(shape[:-2] + shape[-1:]).to(grad))
                if factored
                else (torch.zeros_like(grad),)
            )
        weights = p.data
        _rms(weights)
        update = (grad**2) + 1e-30
        if factored:
            row, column = self.state[p]
            row.mul_(0.9).add_(update.mean(dim=-1), alpha=0.1)
            column.mul_(0.9).add_(update.mean(dim=-2), alpha=0.1)
            r = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
            update = torch.mul(r, column.unsqueeze(-2).rsqrt())
            update.mul_(grad)
        else:
            (square,) = self.state[p]
            square.mul_(0.9).add_(update, alpha=0.1)
            update = square.rsqrt().mul_(grad)
        update.div_((_rms(update) / 1.0).clamp_(min=1.0))
        update.mul_(5e-5)
        weights.add_(-update)


def _rms(x: Tensor) -> Tensor:
    return x.norm(2) / (x.numel() ** 0.5)


def _clip(params: list[nn.Parameter]) -> None:
    """`clip_grad_norm_` of torch 1.10, with a norm of 1."""
    norms = [torch.linalg.vector_norm(p.grad.detach(), 2) for p in params if p.grad is not None]
    total = torch.linalg.vector_norm(torch.stack(norms), 2)
    factor = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    for p in params:
        if p.grad is not None:
            p.grad.detach().mul_(factor)


def train(
    model: BertClassifier,
    *,
    device: torch.device,
    batch: int,
    seq: int,
    accumulate: int,
    amp: bool,
    optimizer: str,
    meter: Meter,
) -> None:
    """`STEPS` optimizer steps; what is reserved at the end is what the row has."""
    model.to(device).train()
    params = [p for p in model.parameters() if p.requires_grad]
    step: Callable[[], None]
    step = OldAdafactor(params).step if optimizer == "Adafactor" else OldAdamW(params).step
    scale = torch.full((), 65536.0, device=device) if amp else None
    total = torch.tensor(0.0).to(device)
    for _ in range(STEPS):
        for _ in range(accumulate):
            ids = torch.randint(100, 30_000, (batch, seq)).to(device)
            labels = torch.randint(0, 2, (batch,)).to(device)
            with torch.autocast(device.type, torch.float16, enabled=amp):
                loss = model(ids, labels)
            if accumulate > 1:
                loss = loss / accumulate
            (loss if scale is None else loss * scale).backward()
            total += loss.detach()
        if scale is not None:
            _unscale(params, scale)
        _clip(params)
        step()
        for p in params:
            if p.grad is not None:
                p.grad.detach_().zero_()
    meter.note("after training", meter.allocated())


def _unscale(params: list[nn.Parameter], scale: Tensor) -> None:
    grads = [p.grad for p in params if p.grad is not None]
    found = torch.full((), 0.0, device=scale.device)
    torch._amp_foreach_non_finite_check_and_unscale_(
        grads, found, scale.double().reciprocal().float()
    )


def load(config: dict[str, Any], device: torch.device) -> BertClassifier:
    """The row `hf-bertlarge-load`: a tiny tensor, then the weights alone."""
    torch.ones((1, 1)).to(device)
    return BertClassifier(config, checkpointing=False).to(device)
