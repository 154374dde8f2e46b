"""Choices that PyTorch makes for CUDA before a kernel runs: batch norm, dropout, optimizers.

Autocast itself needs no table: its lists and its weight cache are C++'s own, which work
once `cuda` is unlocked (aten/src/ATen/autocast_mode.cpp).
"""

from __future__ import annotations

from typing import Literal

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

# cuDNN's limits on the batch (Normalization.cpp): training and evaluation.
_TRAINING_BATCH, _EVALUATION_BATCH = 880_801, 65_535

# torch/optim/*.py of 2.0 to 2.14: those that call _default_to_fused_or_foreach.
_FOREACH_SINCE_2_0 = frozenset(
    {
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "ASGD",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    }
)


def batch_norm_backend(
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    running: bool,
    training: bool,
    ctx: KernelContext,
) -> Literal["cudnn", "native"]:
    """The operation `batch_norm` becomes: `cudnn_batch_norm` or `native_batch_norm`.

    aten/src/ATen/native/Normalization.cpp, `_select_batch_norm_backend` (2.4 to 2.14) and
    the condition it was split from (1.10 to 2.3). Only cuDNN's keeps a reserve.

    Args:
        x: input.
        weight: scale, or None.
        bias: shift, or None.
        running: running mean and variance are given.
        training: batch statistics are used.
        ctx: device, versions and switches.
    """
    if not ctx.cudnn_enabled or weight is None or bias is None or len(x.shape) < 3:
        return "native"
    if "bfloat16" in (x.dtype, weight.dtype):
        return "native"
    if x.dtype == "float16" and weight.dtype != "float32":
        return "native"
    if not running and not training:
        return "native"
    largest = _TRAINING_BATCH if training else _EVALUATION_BATCH
    return "cudnn" if x.shape[0] <= largest and x.numel < 2**31 else "native"


def dropout_operation(training: bool, probability: float) -> Literal["native_dropout", "none"]:
    """CUDA's dropout in training is one fused operation that keeps a boolean mask.

    aten/src/ATen/native/Dropout.cpp, `is_fused_kernel_acceptable`: probability strictly
    between 0 and 1. On the CPU it is a random mask and two products instead.
    """
    return "native_dropout" if training and 0 < probability < 1 else "none"


def optimizer_loop(name: str, ctx: KernelContext) -> Literal["foreach", "for_loop"]:
    """How an optimizer of torch.optim steps through CUDA parameters by default.

    Since 2.0 lists of tensors at once (`foreach`), which makes temporaries of the size of
    all parameters; never fused by default (torch/optim/optimizer.py).
    """
    listed = name in _FOREACH_SINCE_2_0 and ctx.torch_version >= (2, 0)
    return "foreach" if listed else "for_loop"
