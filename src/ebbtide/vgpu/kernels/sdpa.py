"""`scaled_dot_product_attention` as CUDA runs it, in terms of ATen's own operations.

On CUDA the composite in aten/src/ATen/native/transformers/attention.cpp asks a device
stub for the kernel; without a CUDA device that stub is missing. This does what the
composite does around it: mask conversion, padding, and the call of the chosen kernel's
operation, whose meta kernel gives the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ebbtide.vgpu.kernels.attention import (
    ALL_BACKENDS,
    Backend,
    Choice,
    choose_sdpa,
    mask_alignment,
    mask_is_aligned,
)
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

_aten = torch.ops.aten
# cuDNN gets the largest negative half instead of -inf (convert_boolean_attn_mask_cudnn).
_CUDNN_MASKED = -65504.0


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    context: KernelContext,
    enabled: frozenset[Backend] | set[Backend] | None = None,
    on_choice: Callable[[Choice], None] | None = None,
) -> Tensor:
    """Attention by the kernel that CUDA would take; works on meta and fake tensors.

    Args:
        query: (..., length, head dimension); `key` and `value` likewise.
        key: key.
        value: value.
        attn_mask: boolean (true where attended) or added to the scores.
        dropout_p: probability.
        is_causal: attend to earlier positions only.
        scale: of the scores; one over the square root of the head dimension by default.
        enable_gqa: fewer heads in key and value are allowed.
        context: device, versions and switches.
        enabled: kernels that are switched on; by default torch's own switches are asked.
        on_choice: told of the choice and its reason.
    """
    grads = torch.is_grad_enabled()
    needs_grad = grads and any(t.requires_grad for t in (query, key, value))
    choice = choose_sdpa(
        _meta(query),
        _meta(key),
        _meta(value),
        None if attn_mask is None else _meta(attn_mask),
        dropout_p,
        is_causal,
        enable_gqa,
        needs_grad,
        context,
        _switches() if enabled is None else enabled,
        mask_needs_grad=attn_mask is not None and attn_mask.requires_grad,
    )
    if on_choice is not None:
        on_choice(choice)
    if choice.backend == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if choice.backend == "math":
        mask = _additive(attn_mask, query.dtype)
        return _math(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, context)
    if choice.backend == "efficient":
        mask = _efficient_mask(_additive(attn_mask, query.dtype), query, key, context)
        out = _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
        )
        return _first(out)
    mask = _additive(attn_mask, query.dtype, masked=_CUDNN_MASKED)
    out = _aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, needs_grad, dropout_p, is_causal, False, scale=scale
    )
    return _first(out)


def _first(out: tuple[Tensor, ...]) -> Tensor:
    return out[0]


def _switches() -> frozenset[Backend]:
    """The kernels that `torch.backends.cuda` and `sdpa_kernel` leave on."""
    backends = torch.backends.cuda
    on: dict[Backend, bool] = {
        "flash": backends.flash_sdp_enabled(),
        "efficient": backends.mem_efficient_sdp_enabled(),
        "math": backends.math_sdp_enabled(),
        "cudnn": backends.cudnn_sdp_enabled(),
    }
    return ALL_BACKENDS & {name for name, is_on in on.items() if is_on}


def _meta(tensor: Tensor) -> TensorMeta:
    return TensorMeta(
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize=tensor.dtype.itemsize,
    )


def _additive(
    mask: Tensor | None, dtype: torch.dtype, *, masked: float = -math.inf
) -> Tensor | None:
    """`convert_boolean_attn_mask`: a boolean mask as one that is added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask.logical_not(), masked, zero)


def _efficient_mask(
    mask: Tensor | None, query: Tensor, key: Tensor, context: KernelContext
) -> Tensor | None:
    """`preprocess_mask`: rows of an aligned length, then expanded to all heads."""
    if mask is None:
        return None
    if not mask_is_aligned(_meta(mask), context):
        step, length = mask_alignment(context), mask.shape[-1]
        # A mask whose rows are long enough but lie badly is padded by a whole step.
        mask = torch.nn.functional.pad(mask, (0, step - length % step))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Head dimensions that are no multiple of 8 are padded before the kernel."""
    head_dim = query.shape[-1]
    if scale is None:
        scale = 1.0 / math.sqrt(head_dim)
    padded = [_pad_to_eight(tensor) for tensor in (query, key, value)]
    out = _aten._scaled_dot_product_flash_attention(
        *padded, dropout_p, is_causal, False, scale=scale
    )
    result: Tensor = out[0]
    return result[..., :head_dim] if result.shape[-1] != head_dim else result


def _pad_to_eight(tensor: Tensor) -> Tensor:
    extra = -tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, (0, extra)) if extra else tensor


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    context: KernelContext,
) -> Tensor:
    """ATen's composite; half precision is computed in float32 since 2.5 (PR 128922)."""
    if context.torch_version >= (2, 5):
        out = _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return _first(out)
    factor = math.sqrt(1.0 / math.sqrt(query.shape[-1]) if scale is None else abs(scale))
    scaled = query * (-factor if scale is not None and scale < 0 else factor)
    if is_causal:
        ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        mask = _additive(ones.tril(), query.dtype)
    scores = torch.matmul(scaled, key.transpose(-2, -1) * factor)
    if mask is not None:
        scores.add_(mask)
    weights = torch.softmax(scores, -1)
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value)
