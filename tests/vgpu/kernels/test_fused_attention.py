"""Buffers worked out from flash_api.cpp, attention_backward.cu and kernel_backward.h."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.fused_attention import key_splits, padded_head
from ebbtide.vgpu.kernels.scratch import Scratch, scratch
from ebbtide.vgpu.kernels.temporary import rounded
from ebbtide.vgpu.tensors import TensorMeta

from .build import meta

A100 = KernelContext(capability=(8, 0), torch_version=(2, 13), sm_count=108)


def heads_second(batch: int, heads: int, length: int, dim: int, dtype: str) -> TensorMeta:
    """(batch, heads, length, dim) as a transposed view, which is how models make it."""
    strides = (length * heads * dim, dim, heads * dim, 1)
    return meta(batch, heads, length, dim, dtype=dtype, strides=strides)


def backward(
    kernel: str,
    shape: tuple[int, int, int, int],
    *,
    dtype: str = "float16",
    keys: TensorMeta | None = None,
    grad: TensorMeta | None = None,
    ctx: KernelContext = A100,
) -> Scratch:
    q = heads_second(*shape, dtype)
    k = keys or q
    lse = meta(*shape[:3])
    arguments = (grad or q, q, k, k, q, lse, 0.0, False)
    if kernel == "efficient":
        arguments = (grad or q, q, k, k, None, q, lse, 0.0)  # type: ignore[assignment]
    name = f"_scaled_dot_product_{kernel}_attention_backward"
    (found,) = scratch(name, arguments, (q, k, k), ctx)
    return found


def test_flash_backward() -> None:
    """Lengths to 128, heads to 32: softmax_d (2, 8, 1024) and dq_accum (2, 1024, 8, 96)."""
    stage = backward("flash", (2, 8, 1000, 80))
    rows = 2 * 8 * 1024 * 4
    assert stage.low == stage.high == rounded(rows, rows * 96)
    assert stage.after_outputs == 3


def test_flash_backward_of_grouped_queries_expands_keys() -> None:
    k = heads_second(2, 2, 1024, 64, "bfloat16")
    grouped = backward("flash", (2, 8, 1024, 64), dtype="bfloat16", keys=k)
    plain = backward("flash", (2, 8, 1024, 64), dtype="bfloat16")
    assert grouped.likely - plain.likely == 2 * (2 * 8 * 1024 * 64 * 2)


def test_flash_backward_in_deterministic_mode_splits() -> None:
    """108 multiprocessors over 16 heads: seven copies of the gradient."""
    ctx = replace(A100, deterministic=True)
    plain = backward("flash", (2, 8, 1024, 64))
    split = backward("flash", (2, 8, 1024, 64), ctx=ctx)
    rows = 2 * 8 * 1024 * 4
    assert split.likely - plain.likely == 6 * rows * 64


def test_a_gradient_in_another_layout_is_copied() -> None:
    grad = meta(2, 8, 1024, 64, dtype="float16")  # not transposed
    copied = backward("flash", (2, 8, 1024, 64), grad=grad)
    assert copied.likely - backward("flash", (2, 8, 1024, 64)).likely == grad.nbytes


@pytest.mark.parametrize(
    ("head_dim", "padded"), [(8, 32), (64, 64), (80, 96), (192, 192), (200, 256), (256, 256)]
)
def test_padded_heads(head_dim: int, padded: int) -> None:
    assert padded_head(head_dim) == padded


def flash(length: int, keys: int, *, dropout: float = 0.0) -> tuple[Scratch, ...]:
    q, k = (heads_second(1, 16, n, 128, "float16") for n in (length, keys))
    arguments = (q, k, k, dropout, False, False)
    return scratch("_scaled_dot_product_flash_attention", arguments, (q, meta(1, 16)), A100)


def test_one_query_splits_its_keys() -> None:
    """16 heads on 108 multiprocessors, 64 blocks of keys: six splits."""
    splits = key_splits(16, 108, 64)
    assert splits == 6
    (stage,) = flash(1, 8192)
    rows = splits * 16 * 4
    assert stage.likely == rounded(rows, rows * 128)


def test_many_queries_do_not_split() -> None:
    assert flash(4096, 4096) == ()
    assert flash(1, 8192, dropout=0.5) == ()


@given(st.integers(1, 400), st.integers(1, 200), st.integers(1, 300))
def test_splits_are_within_bounds(blocks: int, sms: int, keys: int) -> None:
    splits = key_splits(blocks, sms, keys)
    assert 1 <= splits <= max(1, min(128, sms, keys))
    if blocks >= 0.8 * sms:
        assert splits == 1


def test_efficient_backward_in_float32_multiplies_out() -> None:
    """The rows' sums come from gradient times output, a tensor of their size."""
    stage = backward("efficient", (2, 8, 512, 64), dtype="float32")
    assert stage.low == stage.high == rounded(2 * 8 * 512 * 64 * 4, 2 * 8 * 512 * 4)
    assert stage.after_outputs == 4


def test_efficient_backward_in_half_precision_stages_gradients() -> None:
    stage = backward("efficient", (2, 8, 512, 64))
    queries = 2 * 8 * 512 * 64 * 4
    assert stage.low == stage.likely == rounded(2 * 8 * 512 * 4) + queries
    assert stage.high >= stage.likely


def test_efficient_backward_of_wide_heads_stages_keys_too() -> None:
    """Heads of 192: keys and values do not stay in registers (`kOutputInRF`)."""
    stage = backward("efficient", (2, 8, 512, 192))
    each = 2 * 8 * 512 * 192 * 4
    assert stage.likely == rounded(2 * 8 * 512 * 4) + 3 * each


def test_cudnn_attention() -> None:
    stage = backward("cudnn", (2, 8, 1024, 64))
    rows = 2 * 8 * 1024 * 4
    assert (stage.low, stage.likely) == (rows, rows + rows * 64)
    q = heads_second(2, 8, 1024, 64, "float16")
    found = scratch("_scaled_dot_product_cudnn_attention", (q, q, q), (q, meta(2, 8)), A100)
    assert [s.likely for s in found] == [0]
