"""Temporaries of normalisations and losses.

Sources: aten/src/ATen/native/cuda/layer_norm_kernel.cu, group_norm_kernel.cu,
Normalization.cu, SoftMax.cu, LossCTC.cu and native/cudnn/BatchNorm.cpp, of 2.0 to 2.14.
"""

from __future__ import annotations

import math

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.reductions import global_reduce
from ebbtide.vgpu.kernels.temporary import (
    Inputs,
    Outputs,
    Scratch,
    accumulator_bytes,
    argument,
    copy_bytes,
    exact,
    rounded,
    span,
    tensors_of,
)
from ebbtide.vgpu.tensors import TensorMeta


def contiguous_input(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """Operations that only copy what is not contiguous: softmax and its backward, norms."""
    tensors = tensors_of(inputs)
    several = 2 if "backward" in name else 1
    return exact("contiguous copy", 0, *copy_bytes(*tensors[:several]))


def safe_softmax(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`_safe_softmax(self, dim, dtype)` of attention without a fused kernel.

    transformers/attention.cpp, since 2.5: the softmax, a mask of what is minus infinity,
    which rows are so altogether, and `where` of them, which is the output. Before, it was
    the softmax alone.
    """
    if ctx.torch_version < (2, 5):
        return contiguous_input(name, inputs, outputs, ctx)
    tensor, out = tensors_of(inputs)[0], outputs[0]
    rows = tensor.numel // max(tensor.shape[int(argument(inputs, 1, -1))], 1)
    scalars = (out.itemsize, out.itemsize)
    return exact("softmax before where", 1, out.nbytes, tensor.numel, rows, *scalars)


def layer_norm_backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, ...)`.

    `LaunchGammaBetaBackwardCUDAKernel`: for more than 65,536 rows that are narrow for the
    GPU, blocks write partial sums of gamma's and beta's gradients, which are then summed.
    """
    grad, tensor = tensors_of(inputs)[:2]
    normalized = argument(inputs, 2, ())
    copies = copy_bytes(grad, tensor)
    columns = math.prod(n for n in normalized if isinstance(n, int)) or 1
    rows = tensor.numel // columns
    across = -(-columns // 32)
    stages = exact("contiguous copy", 0, *copies)
    # The kernels before PR 148605 (merged 2025-03, in 2.8) need no temporaries.
    if ctx.torch_version < (2, 8) or rows <= 64 * 1024 or columns // 32 >= ctx.sm_count // 2:
        return stages
    down = min(32 * 1024 // across, -(-rows // 32))
    partial = TensorMeta((down, columns), (columns, 1), tensor.dtype, tensor.itemsize)
    staging = global_reduce(partial, (0,), accumulator_bytes(tensor.dtype), ctx)
    sums = (partial.nbytes, partial.nbytes)
    return stages + exact("partial sums of gamma and beta", 3, *copies, *sums, *staging)


def group_norm(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`native_group_norm(input, weight, bias, N, C, HxW, group, eps)`: scale and shift."""
    tensor = tensors_of(inputs)[0]
    batch, channels, area = (int(argument(inputs, i, 1)) for i in (3, 4, 5))
    each = batch * channels * accumulator_bytes(tensor.dtype)
    factors = () if area == 1 else (each, each)
    return exact("scale and shift", len(outputs), *copy_bytes(tensor), *factors)


def group_norm_backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`native_group_norm_backward(grad, input, mean, rstd, weight, N, C, HxW, group, ...)`."""
    grad, tensor = tensors_of(inputs)[:2]
    batch, channels, area, groups = (int(argument(inputs, i, 1)) for i in (5, 6, 7, 8))
    size = accumulator_bytes(tensor.dtype)
    each, per_group = batch * channels * size, batch * groups * size
    factors = (per_group,) * 2 if area == 1 else (each, each, each, per_group, per_group)
    return exact("sums of groups", 3, *copy_bytes(grad, tensor), *factors)


def batch_norm(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """Batch normalisation by cuDNN: a workspace that its source does not tell.

    BatchNorm.cpp asks cuDNN for the size each time. Its persistent kernels take none, the
    others a few values for each channel; the reserve is an output.
    """
    tensor = tensors_of(inputs)[0]
    channels = tensor.shape[1] if len(tensor.shape) > 1 else 1
    copies = rounded(*copy_bytes(tensor)) if not _channels_last(tensor) else 0
    return span("cuDNN workspace", len(outputs), copies, copies, copies + channels * 64)


def _channels_last(tensor: TensorMeta) -> bool:
    rank = len(tensor.shape)
    if rank not in (4, 5):
        return False
    order = (1, *range(rank - 1, 1, -1), 0)
    expected = 1
    for dim in order:
        if tensor.shape[dim] != 1 and tensor.strides[dim] != expected:
            return False
        expected *= tensor.shape[dim]
    return True


def ctc_backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`_ctc_loss_backward(grad, log_probs, ..., log_alpha, ...)`: log_beta, like log_alpha."""
    tensors = tensors_of(inputs)
    alpha = max((t for t in tensors if len(t.shape) == 3), key=lambda t: t.shape[2])
    candidates = [t for t in tensors[3:] if len(t.shape) == 3]
    log_beta = candidates[-1] if candidates else alpha
    return exact("log_beta", 0, log_beta.nbytes)
