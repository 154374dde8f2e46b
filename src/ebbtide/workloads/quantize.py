"""Weights held in fewer bits, and widened when they are used.

| format | stored | scale | bytes a weight | as |
|---|---|---|---|---|
| int8 | int8 | fp32 a row | 1 + 4 / columns | torchao's weight-only int8, LLM.int8() |
| fp8 | float8_e4m3fn | fp32 a tensor | 1 | per-tensor FP8 checkpoints |
| nf4 | two weights a byte | fp32 a block of 64 | 0.5625 | NF4, no double quantisation |

Sources: bitsandbytes 0.45 ``functional.quantize_4bit`` (blocksize 64, absmax fp32) and
``nn.Linear8bitLt`` (SCB fp32 a row); torchao 0.9 ``int8_weight_only``. As there, the
embedding and the output head stay as they are. Each use writes the widened weight to a
temporary, as bitsandbytes' 4-bit matmul does for more than one row; a kernel that
multiplies the stored form directly saves that temporary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NF4_BLOCK = 64
# The 16 quantiles of a normal distribution, Dettmers et al., QLoRA (2023), appendix E.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@torch.library.custom_op("ebbtide::dequantize", mutates_args=())
def dequantize(
    packed: Tensor, scale: Tensor, rows: int, columns: int, kind: str, dtype: torch.dtype
) -> Tensor:
    """The weight ``[rows, columns]`` in `dtype`; one allocation, as in a fused kernel."""
    if kind != "nf4":
        wide = packed.to(torch.float32) * (scale[:, None] if kind == "int8" else scale)
        return wide.to(dtype)
    table = torch.tensor(NF4, device=packed.device)
    pairs = torch.stack([packed >> 4, packed & 15], dim=-1).flatten().long()
    values = table[pairs][: rows * columns]
    padded = nn.functional.pad(values, (0, len(scale) * NF4_BLOCK - len(values)))
    wide = (padded.view(-1, NF4_BLOCK) * scale[:, None]).flatten()[: rows * columns]
    return wide.view(rows, columns).to(dtype)


@dequantize.register_fake
def _(
    packed: Tensor, scale: Tensor, rows: int, columns: int, kind: str, dtype: torch.dtype
) -> Tensor:
    return packed.new_empty((rows, columns), dtype=dtype)


class _Matmul(torch.autograd.Function):
    """Multiply with a widened weight that is not kept for backward but widened again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return nn.functional.linear(x, layer.wide(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.wide(grad.dtype), None


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is stored in a `kind` of few bits and never trained.

    Args:
        linear: the layer whose shape, bias and values to take.
        kind: one of `ebbtide.workloads.options.QUANTIZATIONS`.
    """

    packed: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.in_features, self.out_features = linear.in_features, linear.out_features
        packed, scale = pack(linear.weight.detach(), kind)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.bias: nn.Parameter | None = linear.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weight ``[out, in]`` in `dtype`."""
        size = (self.out_features, self.in_features)
        result: Tensor = dequantize(self.packed, self.scale, *size, self.kind, dtype)
        return result

    @property
    def weight(self) -> Tensor:
        """The stored form: models ask a layer's weight for its device and dtype."""
        return self.packed

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]`` in the dtype of `x`, or of autocast."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        result: Tensor = _Matmul.apply(x, self)  # type: ignore[no-untyped-call]
        return result if self.bias is None else result + self.bias.to(result.dtype)


def pack(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Stored form and fp32 scales of a weight ``[rows, columns]``."""
    if kind == "int8":
        scale = weight.float().abs().amax(dim=1).clamp(min=1e-8) / 127
        return (weight.float() / scale[:, None]).round().to(torch.int8), scale
    if kind == "fp8":
        top = torch.finfo(torch.float8_e4m3fn).max
        scale = weight.float().abs().amax().clamp(min=1e-8) / top
        return (weight.float() / scale).to(torch.float8_e4m3fn), scale
    count = weight.numel()
    blocks = -(-count // NF4_BLOCK)
    flat = nn.functional.pad(weight.float().flatten(), (0, blocks * NF4_BLOCK - count))
    flat = flat.view(blocks, NF4_BLOCK)
    scale = flat.abs().amax(dim=1).clamp(min=1e-8)
    edges = torch.tensor(NF4)
    codes = torch.bucketize(flat / scale[:, None], (edges[1:] + edges[:-1]) / 2)
    codes = codes.flatten().to(torch.uint8).view(-1, 2)
    return (codes[:, 0] << 4 | codes[:, 1])[: -(-count // 2)], scale


def quantize(model: nn.Module, kind: str, dtype: torch.dtype) -> int:
    """Replace the linear layers inside `model`, all but the output head, in place.

    Args:
        model: on the CPU.
        kind: format of the stored weights.
        dtype: of everything that stays.

    Returns:
        How many layers were replaced.
    """
    model.to(dtype)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not head and name
    ]
    for param in model.parameters():
        param.requires_grad_(False)
    for name, module in chosen:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, QuantizedLinear(module, kind))
    return len(chosen)
