"""The fast path of `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` in evaluation.

Each is one operation whose CUDA kernel calls many others. Their metadata would hide what
those allocate, so they are called here (aten/src/ATen/native/transformers/transformer.cpp
and cuda/attention.cu of pytorch/pytorch @ 00fc08aa).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

_aten = torch.ops.aten
_sdpa = torch.nn.functional.scaled_dot_product_attention


def _heads(tensor: torch.Tensor, count: int) -> torch.Tensor:
    batch, steps, width = tensor.shape
    return tensor.view(batch, steps, count, width // count).transpose(1, 2)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    weight: Any,
    bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """`native_multi_head_attention_cuda`."""
    same = query is key and key is value
    if mask is None and not need_weights and same:
        parts = linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (_heads(part, heads) for part in parts)
        out = _sdpa(q, k, v)
        del q, k, v
        del parts
        joined = out.transpose(1, 2).reshape(query.shape[0], -1, width)
        del out
        return linear(joined, weight, bias), None
    batch, steps = query.shape[:2]
    if same:
        projected = list(linear(query, qkv_weight).chunk(3, -1))
    else:
        weights = qkv_weight.chunk(3, 0)
        inputs = (query, key, value)
        projected = [linear(item, part) for item, part in zip(inputs, weights, strict=True)]
    # transform_bias_rescale_qkv: heads apart, bias added, in one buffer of its own.
    buffer = query.new_empty(3, batch, heads, steps, width // heads)
    del projected
    q, k, v = (part.view(batch * heads, -1, width // heads) for part in buffer.unbind(0))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, steps, -1)
    masked = torch.softmax(scores, -1)
    del scores
    out = torch.bmm(masked.view(batch * heads, steps, -1), v).view(batch, heads, steps, -1)
    del buffer, q, k, v
    joined = out.transpose(1, 2).reshape(batch, steps, width)
    result = linear(joined, weight, bias)
    if not need_weights:
        return result, None
    return result, masked.mean(1) if average else masked


def _multi_head_attention(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    with mode:
        return _attention(*args, **kwargs)


def _encoder_layer(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    with mode:
        return _layer(*args, **kwargs)


def _layer(
    source: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    weight: Any,
    bias: Any,
    gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`transformer_encoder_layer_forward`."""
    norm1, norm1_bias, norm2, norm2_bias, up, up_bias, down, down_bias = rest[:8]
    mask = rest[8] if len(rest) > 8 else mask

    def norm(tensor: Any, scale: Any, shift: Any) -> Any:
        return torch.nn.functional.layer_norm(tensor, (width,), scale, shift, eps)

    x = norm(source, norm1, norm1_bias) if norm_first else source
    x = _attention(
        x, x, x, width, heads, qkv_weight, qkv_bias, weight, bias, mask, need_weights=False
    )[0]
    x.add_(source)
    if not norm_first:
        x = norm(x, norm1, norm1_bias)
    residual = x
    if norm_first:
        x = norm(x, norm2, norm2_bias)
    flat = x.view(-1, width)
    hidden = _aten._addmm_activation(up_bias, flat, up.t(), use_gelu=gelu)
    x = torch.addmm(down_bias, hidden, down.t()).view(source.shape)
    del hidden, flat
    x.add_(residual)
    return x if norm_first else norm(x, norm2, norm2_bias)


HANDLERS: dict[Any, Any] = {
    _aten._native_multi_head_attention.default: _multi_head_attention,
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
