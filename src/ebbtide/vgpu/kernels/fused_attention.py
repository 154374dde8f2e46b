"""Temporaries of the fused attention kernels, forward and backward.

Sources: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (`mha_fwd`,
`mha_bwd`), attention_backward.cu and mem_eff_attention/kernel_backward.h, of 2.2 to 2.14.
"""

from __future__ import annotations

import math

from ebbtide.vgpu.kernels.blas import is_contiguous
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.temporary import (
    Inputs,
    Outputs,
    Scratch,
    exact,
    round_up,
    rounded,
    span,
    tensors_of,
)
from ebbtide.vgpu.tensors import TensorMeta

_FLOAT = 4


def _lengths_first(tensor: TensorMeta) -> TensorMeta:
    """(batch, heads, length, dim) seen as the kernels see it: (batch, length, heads, dim)."""
    order = (0, 2, 1, 3)
    return tensor._replace(
        shape=tuple(tensor.shape[d] for d in order),
        strides=tuple(tensor.strides[d] for d in order),
    )


def _copies(*tensors: TensorMeta) -> tuple[int, ...]:
    return tuple(t.nbytes for t in tensors if not is_contiguous(_lengths_first(t)))


def padded_head(head_dim: int) -> int:
    """The head dimension that flash attention's fp32 buffers are laid out for.

    flash_api.cpp: `head_size_rounded`, a multiple of 32 up to 192, then 256.
    """
    return round_up(head_dim, 32) if head_dim <= 192 else 256


def flash_forward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """Partial results where the keys are split over multiprocessors (few queries, no dropout).

    flash_api.cpp, `set_params_splitkv`.
    """
    query, key = tensors_of(inputs)[:2]
    dropout = next((a for a in inputs[3:] if isinstance(a, float)), 0.0)
    batch, heads, length, head_dim = query.shape
    if dropout or not query.numel:
        return ()
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    splits = key_splits(
        batch * heads * math.ceil(length / 64), ctx.sm_count, math.ceil(key.shape[2] / block)
    )
    if splits == 1:
        return ()
    rows = splits * batch * heads * length * _FLOAT
    return exact("partial results of split keys", 2, rows, rows * padded_head(head_dim))


def key_splits(blocks: int, multiprocessors: int, key_blocks: int) -> int:
    """`num_splits_heuristic`: the fewest splits within 85 % of the best use of the GPU."""
    if blocks >= 0.8 * multiprocessors:
        return 1
    most = min(128, multiprocessors, key_blocks)
    use: dict[int, float] = {}
    for splits in range(1, most + 1):
        each = math.ceil(key_blocks / splits)
        if splits > 1 and each == math.ceil(key_blocks / (splits - 1)):
            continue
        waves = blocks * splits / multiprocessors
        use[splits] = waves / math.ceil(waves)
    best = max(use.values(), default=0.0)
    return next((splits for splits, share in use.items() if share >= 0.85 * best), 1)


def flash_backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """The fp32 gradient of the queries, the rows' sums, and key gradients of every head.

    `mha_bwd`: lengths are rounded up to 128; with grouped queries the gradients of key
    and value are first computed for every query head and then summed.
    """
    grad, query, key, value, out = tensors_of(inputs)[:5]
    copies = _copies(grad, out)
    batch, heads, length, head_dim = query.shape
    rows = batch * heads * round_up(length, 128) * _FLOAT
    splits = math.ceil(ctx.sm_count / (batch * heads)) if ctx.deterministic else 1
    expanded: tuple[int, ...] = ()
    if key.shape[1] != heads:
        every_head = batch * heads * key.shape[2] * head_dim * value.itemsize
        expanded = (every_head, every_head)
    accumulated = splits * rows * padded_head(head_dim)
    return exact("gradient of queries in fp32", 3, *copies, rows, accumulated, *expanded)


def efficient_backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """Sums of the rows and, in half precision, fp32 gradients between the blocks.

    attention_backward.cu: in float32 the rows' sums come from a whole product of
    gradient and output. kernel_backward.h, `workspace_size`: in half precision the
    gradient of the queries is staged in fp32, with heads wider than a block those of key
    and value too; blocks are of 64 or 128 rows, which the build picks.
    """
    grad, query, key, _, *rest = tensors_of(inputs)
    out = next((t for t in rest if t.shape == grad.shape), grad)
    copies = _copies(grad)
    batch, heads, length, head_dim = query.shape
    delta = batch * heads * length * _FLOAT
    if query.itemsize > 2:
        return exact("product of gradient and output", 4, *copies, out.nbytes, delta)
    each = batch * heads * _FLOAT
    queries = each * round_up(length, 64) * round_up(head_dim, 64)
    keys = each * round_up(key.shape[2], 64) * round_up(head_dim, 64) * 2
    low = rounded(*copies, delta, queries)
    wide = head_dim > 64
    likely = low + (rounded(keys) if head_dim > 128 else 0)
    high = low + (rounded(keys) if wide else 0) + (rounded(queries) if head_dim <= 64 else 0)
    return span("gradients in fp32", 4, low, likely, max(likely, high))


def cudnn_forward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """CuDNN's attention keeps its scores on the chip; a small workspace at most."""
    return span("cuDNN workspace", len(outputs), 0, 0, 1 << 20)


def cudnn_backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """CuDNN's backward: rows' sums and an fp32 gradient of the queries.

    cudnn-frontend's `SDPA_backward` node (1.x) declares both as workspace tensors:
    softmax sums (batch, heads, length, 1) and dQ accumulation (batch, heads, length, dim).
    The kernel's own share is not public.
    """
    query = tensors_of(inputs)[1]
    batch, heads, length, head_dim = query.shape
    rows = batch * heads * length * _FLOAT
    likely = rows + rows * head_dim
    return span("cuDNN workspace", 3, rows, likely, 2 * likely)
