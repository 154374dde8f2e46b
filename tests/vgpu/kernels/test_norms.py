"""Sizes worked out from layer_norm_kernel.cu, group_norm_kernel.cu and LossCTC.cu."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.norms import batch_norm
from ebbtide.vgpu.kernels.reductions import global_reduce
from ebbtide.vgpu.kernels.scratch import Scratch, scratch
from ebbtide.vgpu.kernels.temporary import rounded
from ebbtide.vgpu.tensors import TensorMeta

from .build import meta

A100 = KernelContext(capability=(8, 0), torch_version=(2, 8), sm_count=108, threads_per_sm=2048)
OLDER = KernelContext(capability=(8, 0), torch_version=(2, 7), sm_count=108, threads_per_sm=2048)


def layer_norm_backward(
    rows: int, columns: int, ctx: KernelContext, grad: TensorMeta | None = None
) -> tuple[Scratch, ...]:
    x = meta(rows, columns)
    arguments = (grad or x, x, (columns,), meta(rows, 1), meta(rows, 1))
    outputs = (x, meta(columns), meta(columns))
    return scratch("native_layer_norm_backward", arguments, outputs, ctx)


def test_usual_layer_norms_need_nothing() -> None:
    assert layer_norm_backward(8192, 768, A100) == ()
    assert layer_norm_backward(100_000, 4096, A100) == ()


def test_many_narrow_rows_are_summed_in_two_passes() -> None:
    """100,000 rows of 96: 3 blocks across, min(32,768 / 3, 3,125) = 3,125 down."""
    (stage,) = layer_norm_backward(100_000, 96, A100)
    partial = meta(3125, 96)
    staging = global_reduce(partial, (0,), 4, A100)
    assert stage.likely == rounded(partial.nbytes, partial.nbytes, *staging)
    assert stage.after_outputs == 3


def test_rows_beyond_the_grid() -> None:
    """A million rows of 1,024: 32 blocks across leave 1,024 down."""
    (stage,) = layer_norm_backward(1 << 20, 1024, A100)
    assert stage.likely >= 2 * 1024 * 1024 * 4


def test_older_kernels_need_nothing() -> None:
    assert layer_norm_backward(100_000, 96, OLDER) == ()


def test_a_gradient_that_is_not_contiguous_is_copied() -> None:
    grad = meta(64, 32, strides=(1, 64))
    (stage,) = layer_norm_backward(64, 32, A100, grad)
    assert (stage.likely, stage.after_outputs) == (64 * 32 * 4, 0)


@pytest.mark.parametrize(
    "name", ["_softmax", "_log_softmax", "native_layer_norm", "_softmax_backward_data"]
)
def test_softmax_and_its_like_copy_what_is_not_contiguous(name: str) -> None:
    turned = meta(8, 128, strides=(1, 8))
    flat = meta(8, 128)
    assert scratch(name, (flat, flat, -1), (flat,), A100) == ()
    (stage,) = scratch(name, (turned, flat, -1), (flat,), A100)
    assert stage.likely == 8 * 128 * 4


def test_safe_softmax_holds_the_plain_one_and_a_mask() -> None:
    x = meta(1, 32, 2048, 2048)
    (stage,) = scratch("_safe_softmax", (x, -1), (x,), A100)
    assert stage.likely == rounded(x.nbytes, x.numel, 32 * 2048, 4, 4)
    assert stage.after_outputs == 1
    before = replace(A100, torch_version=(2, 4))
    assert scratch("_safe_softmax", (x, -1), (x,), before) == ()


def test_group_norm() -> None:
    x = meta(4, 64, 16, 16)
    arguments = (x, meta(64), meta(64), 4, 64, 256, 8, 1e-5)
    outputs = (x, meta(4, 8), meta(4, 8))
    (stage,) = scratch("native_group_norm", arguments, outputs, A100)
    assert stage.likely == 2 * rounded(4 * 64 * 4)
    flat = (meta(4, 64), meta(64), meta(64), 4, 64, 1, 8, 1e-5)
    assert scratch("native_group_norm", flat, outputs, A100) == ()


def test_group_norm_backward() -> None:
    x = meta(4, 64, 16, 16, dtype="float16")
    groups = meta(4, 8)
    arguments = (x, x, groups, groups, meta(64), 4, 64, 256, 8)
    outputs = (x, meta(64), meta(64))
    (stage,) = scratch("native_group_norm_backward", arguments, outputs, A100)
    assert stage.likely == 3 * rounded(4 * 64 * 4) + 2 * rounded(4 * 8 * 4)
    assert stage.after_outputs == 3


def test_batch_norm_by_cudnn() -> None:
    x = meta(8, 64, 28, 28)
    (stage,) = scratch("cudnn_batch_norm", (x, meta(64), meta(64)), (x, meta(64)), A100)
    assert (stage.low, stage.likely) == (0, 0)
    assert stage.high == 64 * 64
    last = meta(8, 64, 28, 28, strides=(64 * 784, 1, 28 * 64, 64))
    assert batch_norm("cudnn_batch_norm", (last,), (last,), A100)[0].likely == 0
    odd = meta(8, 64, 28, 28, strides=(64 * 784 * 2, 784 * 2, 56, 2))
    assert batch_norm("cudnn_batch_norm", (odd,), (odd,), A100)[0].likely == x.nbytes


def test_ctc_backward_mirrors_log_alpha() -> None:
    log_probs, alpha = meta(50, 4, 20), meta(4, 50, 41)
    arguments = (meta(4), log_probs, meta(4, 20, dtype="int64"), (50,), (20,), meta(4), alpha)
    (stage,) = scratch("_ctc_loss_backward", arguments, (log_probs,), A100)
    assert stage.likely == rounded(alpha.nbytes)
