"""Choices worked out from sdp_utils.cpp of the release that each test names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.attention import (
    ALL_BACKENDS,
    Backend,
    Choice,
    NoKernelError,
    choose_sdpa,
    gemm_alignment,
    mask_alignment,
    mask_is_aligned,
    priority_order,
)
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

from .build import meta

T4, A100, RTX3060, L4, H100, B200, RTX5090 = (
    (7, 5),
    (8, 0),
    (8, 6),
    (8, 9),
    (9, 0),
    (10, 0),
    (12, 0),
)


def context(
    capability: tuple[int, int] = A100,
    version: tuple[int, int] = (2, 13),
    cudnn: int = 90100,
    **more: Any,
) -> KernelContext:
    return KernelContext(capability=capability, torch_version=version, cudnn_version=cudnn, **more)


def choose(
    ctx: KernelContext | None = None,
    *,
    q: TensorMeta | None = None,
    k: TensorMeta | None = None,
    v: TensorMeta | None = None,
    dtype: str = "float16",
    head_dim: int = 64,
    mask: TensorMeta | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    gqa: bool = False,
    grad: bool = False,
    enabled: frozenset[Backend] = ALL_BACKENDS,
    mask_needs_grad: bool = False,
) -> Choice:
    q = q or meta(2, 8, 128, head_dim, dtype=dtype)
    k = k or q
    v = v or k
    return choose_sdpa(
        q,
        k,
        v,
        mask,
        dropout,
        causal,
        gqa,
        grad,
        ctx or context(),
        enabled,
        mask_needs_grad=mask_needs_grad,
    )


@pytest.mark.parametrize(
    ("ctx", "first"),
    [
        (context(H100, (2, 6)), "flash"),
        (context(H100, (2, 8), 91002), "flash"),
        (context(H100, (2, 9), 91002), "cudnn"),
        (context(A100, (2, 9), 91002), "flash"),
        (context(H100, (2, 9), 90800), "flash"),
        (context(H100, (2, 10), 91002), "flash"),
        (context(H100, (2, 13), 92000), "cudnn"),
        (context(B200, (2, 13), 92000), "cudnn"),
        (context((10, 3), (2, 13), 92000), "cudnn"),
        (context((10, 1), (2, 13), 92000), "flash"),
        (context((10, 1), (2, 13), 92000, cuda_version=(13, 0)), "cudnn"),
        (context(L4, (2, 13), 92000), "flash"),
        (context(RTX5090, (2, 13), 92000), "flash"),
    ],
)
def test_which_kernel_is_tried_first(ctx: KernelContext, first: str) -> None:
    assert priority_order(ctx)[0] == first


def test_the_user_can_put_cudnn_last() -> None:
    new = context(H100, cudnn=92000, environment={"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"})
    assert priority_order(new)[-1] == "cudnn"
    older = context(H100, (2, 9), 91002, environment={"TORCH_CUDNN_SDPA_PREFERRED": "0"})
    assert priority_order(older)[-1] == "cudnn"


@pytest.mark.parametrize(
    ("capability", "version", "backend"),
    [
        (T4, (2, 13), "efficient"),
        (A100, (2, 2), "flash"),
        (RTX3060, (2, 6), "flash"),
        (RTX5090, (2, 6), "math"),
        (RTX5090, (2, 7), "flash"),
        ((12, 1), (2, 7), "math"),
        ((12, 1), (2, 8), "flash"),
    ],
)
def test_half_precision_by_architecture(
    capability: tuple[int, int], version: tuple[int, int], backend: str
) -> None:
    assert choose(context(capability, version)).backend == backend


def test_float32_takes_the_efficient_kernel() -> None:
    choice = choose(dtype="float32")
    assert choice.backend == "efficient"
    assert "flash: needs one dtype" in choice.reason


def test_float64_takes_the_math_path() -> None:
    assert choose(dtype="float64").backend == "math"


def test_bfloat16_before_ampere_takes_the_math_path() -> None:
    assert choose(context(T4), dtype="bfloat16").backend == "math"
    assert choose(context(T4), dtype="float16").backend == "efficient"


def test_a_mask_takes_the_efficient_kernel() -> None:
    mask = meta(2, 1, 128, 128, dtype="bool")
    assert choose(mask=mask).backend == "efficient"
    assert choose(context(version=(2, 0)), mask=mask).backend == "math"


def test_a_mask_that_is_not_contiguous_in_its_last_dimension() -> None:
    assert choose(mask=meta(128, 128, strides=(1, 128), dtype="bool")).backend == "math"


@pytest.mark.parametrize(
    ("head_dim", "dtype", "capability", "backend"),
    [
        (256, "float16", A100, "flash"),
        (264, "float16", A100, "efficient"),
        (62, "float16", A100, "flash"),  # padded to 64 before the kernel
        (62, "float32", A100, "math"),
        (60, "float32", A100, "efficient"),
        (62, "float32", T4, "efficient"),
        (62, "float16", T4, "math"),
    ],
)
def test_head_dimensions(
    head_dim: int, dtype: str, capability: tuple[int, int], backend: str
) -> None:
    assert choose(context(capability), head_dim=head_dim, dtype=dtype).backend == backend


def test_head_dimensions_that_differ() -> None:
    q, v = meta(2, 8, 128, 192, dtype="float16"), meta(2, 8, 128, 128, dtype="float16")
    assert choose(q=q, v=v).backend == "efficient"
    assert choose(context(H100, cudnn=92000), q=q, v=v).backend == "cudnn"
    only = frozenset[Backend]({"cudnn", "math"})
    assert choose(context(A100, cudnn=92000), q=q, v=v, enabled=only).backend == "math"


@pytest.mark.parametrize(
    ("capability", "head_dim", "dropout", "backend"),
    [
        (L4, 192, 0.0, "flash"),
        (L4, 200, 0.0, "efficient"),
        (L4, 224, 0.0, "efficient"),
        (L4, 256, 0.0, "flash"),
        (L4, 256, 0.1, "efficient"),
        (RTX5090, 224, 0.0, "efficient"),
        (A100, 224, 0.1, "flash"),
    ],
)
def test_backward_of_large_heads(
    capability: tuple[int, int], head_dim: int, dropout: float, backend: str
) -> None:
    trained = choose(context(capability), head_dim=head_dim, dropout=dropout, grad=True)
    assert trained.backend == backend
    assert choose(context(capability), head_dim=head_dim, dropout=dropout).backend == "flash"


def test_causal_with_a_cache() -> None:
    q, k = meta(2, 8, 1, 64, dtype="float16"), meta(2, 8, 128, 64, dtype="float16")
    assert choose(q=q, k=k, causal=True).backend == "efficient"
    assert choose(q=q, k=k).backend == "flash"


@pytest.mark.parametrize(
    ("version", "dtype", "gqa", "backend"),
    [
        ((2, 13), "float16", True, "flash"),
        ((2, 13), "float16", False, "math"),
        ((2, 13), "float32", True, "math"),
        ((2, 14), "float32", True, "efficient"),
        ((2, 4), "float16", True, "math"),
    ],
)
def test_grouped_queries(version: tuple[int, int], dtype: str, gqa: bool, backend: str) -> None:
    q, k = meta(2, 8, 128, 64, dtype=dtype), meta(2, 2, 128, 64, dtype=dtype)
    assert choose(context(version=version), q=q, k=k, gqa=gqa).backend == backend


def test_one_key_head_needs_no_flag_since_2_14() -> None:
    q, k = meta(2, 8, 128, 64, dtype="float16"), meta(2, 1, 128, 64, dtype="float16")
    assert choose(context(version=(2, 14)), q=q, k=k).backend == "flash"
    assert choose(context(version=(2, 13)), q=q, k=k).backend == "math"


def test_heads_that_do_not_divide() -> None:
    q, k = meta(2, 8, 128, 64, dtype="float16"), meta(2, 3, 128, 64, dtype="float16")
    assert choose(q=q, k=k, gqa=True).backend == "math"
    v = meta(2, 4, 128, 64, dtype="float16")
    assert choose(q=q, k=meta(2, 2, 128, 64, dtype="float16"), v=v, gqa=True).backend == "math"


def test_batches_that_differ() -> None:
    q, k = meta(2, 8, 128, 64, dtype="float16"), meta(1, 8, 128, 64, dtype="float16")
    assert choose(q=q, k=k).backend == "math"


def test_three_dimensions_take_the_math_path() -> None:
    assert choose(q=meta(16, 128, 64, dtype="float16")).backend == "math"


def test_no_queries() -> None:
    assert choose(q=meta(2, 8, 0, 64, dtype="float16")).backend == "math"


def test_last_stride() -> None:
    q = meta(2, 8, 128, 64, dtype="float16", strides=(65536, 8192, 1, 128))
    assert choose(q=q).backend == "math"
    single = meta(2, 8, 128, 1, dtype="float16", strides=(1024, 128, 1, 9))
    assert choose(q=single).backend == "flash"


def test_switches() -> None:
    assert choose(enabled=frozenset({"efficient", "math"})).backend == "efficient"
    assert choose(enabled=frozenset({"math"})).backend == "math"
    with pytest.raises(NoKernelError, match=r"No available kernel\. Aborting execution"):
        choose(dtype="float32", enabled=frozenset({"flash"}))


def test_a_user_order_wins() -> None:
    tensor = meta(2, 8, 128, 64, dtype="float16")
    choice = choose_sdpa(
        tensor, tensor, tensor, None, 0.0, False, False, False, context(), order=("math", "flash")
    )
    assert choice.backend == "math"


HOPPER = context(H100, cudnn=92000)


@pytest.mark.parametrize(
    "arguments",
    [
        {"dropout": 0.1},
        {"head_dim": 136},
        {"head_dim": 60},
        {"q": meta(2, 8, 128, 64, dtype="float16"), "k": meta(2, 8, 1, 64, dtype="float16")},
        {"q": meta(70_000, 8, 4, 64, dtype="float16")},
        {"dropout": 0.5, "q": meta(2, 8, 1, 64, dtype="float16")},
    ],
)
def test_what_cudnn_refuses(arguments: dict[str, Any]) -> None:
    assert choose(HOPPER, **arguments).backend == "flash"


def test_what_cudnn_accepts() -> None:
    assert choose(HOPPER).backend == "cudnn"
    assert choose(HOPPER, dropout=0.125).backend == "cudnn"
    assert choose(HOPPER, mask=meta(2, 1, 1, 128, dtype="bool")).backend == "cudnn"


@pytest.mark.parametrize("shape", [(2, 128, 128), (2, 3, 128, 128), (128, 64)])
def test_masks_that_cudnn_refuses(shape: tuple[int, ...]) -> None:
    assert choose(HOPPER, mask=meta(*shape, dtype="bool")).backend == "efficient"


def test_a_learned_mask_is_none_of_cudnns() -> None:
    mask = meta(128, 128, dtype="float16")
    assert choose(HOPPER, mask=mask).backend == "cudnn"
    assert choose(HOPPER, mask=mask, mask_needs_grad=True).backend == "efficient"


def test_cudnn_is_not_deterministic() -> None:
    assert choose(context(H100, cudnn=92000, deterministic=True)).backend == "flash"


def test_cudnn_lost_its_dropout_from_9_11_to_9_13() -> None:
    only = frozenset[Backend]({"cudnn"})
    with pytest.raises(NoKernelError, match=r"9\.11"):
        choose(context(H100, cudnn=91300), dropout=0.5, enabled=only)
    assert choose(context(H100, cudnn=91400), dropout=0.5, enabled=only).backend == "cudnn"


def test_cudnn_takes_heads_of_256_since_2_14() -> None:
    new = context(H100, (2, 14), 92400)
    assert choose(new, head_dim=256).backend == "cudnn"
    assert choose(new, head_dim=256, grad=True).backend == "cudnn"
    assert choose(new, head_dim=160).backend == "cudnn"
    assert choose(new, head_dim=160, grad=True).backend == "flash"
    assert choose(HOPPER, head_dim=256).backend == "flash"


def test_cudnn_needs_cudnn() -> None:
    only = frozenset[Backend]({"cudnn"})
    for ctx in (context(version=(2, 4)), context(cudnn=8902), context(cudnn_enabled=False)):
        with pytest.raises(NoKernelError):
            choose(ctx, enabled=only)
    with pytest.raises(NoKernelError, match=r"capability 7\.5"):
        choose(context(T4), enabled=only)


@pytest.mark.parametrize(
    ("dtype", "capability", "expected"),
    [
        ("float16", A100, 8),
        ("float32", A100, 4),
        ("float16", T4, 8),
        ("float32", T4, 1),
        ("float32", (6, 0), 1),
    ],
)
def test_gemm_alignment(dtype: str, capability: tuple[int, int], expected: int) -> None:
    assert gemm_alignment(dtype, context(capability)) == expected


def test_mask_alignment() -> None:
    assert mask_alignment(context(version=(2, 1))) == 16
    assert mask_alignment(context()) == 8
    assert mask_is_aligned(meta(128, 128), context())
    assert not mask_is_aligned(meta(77, 77), context())
    assert mask_is_aligned(meta(2, 1, 1, 80, strides=(80, 0, 0, 1)), context())
    assert not mask_is_aligned(meta(128, 128, strides=(128, 2)), context())
    assert mask_is_aligned(meta(3, 32, strides=(33, 1)), context(version=(2, 1)))


@given(
    st.sampled_from([T4, A100, RTX3060, L4, H100, B200, RTX5090]),
    st.sampled_from([(2, minor) for minor in range(15)]),
    st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    st.integers(1, 300),
    st.booleans(),
    st.booleans(),
)
def test_some_kernel_always_runs(
    capability: tuple[int, int],
    version: tuple[int, int],
    dtype: str,
    head_dim: int,
    causal: bool,
    grad: bool,
) -> None:
    ctx = context(capability, version, 92000)
    choice = choose(ctx, dtype=dtype, head_dim=head_dim, causal=causal, grad=grad)
    assert choice.backend in ALL_BACKENDS
    without = choose(
        ctx,
        dtype=dtype,
        head_dim=head_dim,
        causal=causal,
        grad=grad,
        enabled=ALL_BACKENDS - {choice.backend} | {"math"},
    )
    assert without.backend != choice.backend or choice.backend == "math"
