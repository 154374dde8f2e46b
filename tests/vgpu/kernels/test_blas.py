"""Figures from CublasHandlePool.cpp and Blas.cpp, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.blas import (
    gemm_workspace_bytes,
    is_contiguous,
    lt_is_unified,
    lt_workspace_bytes,
    transposed,
    which_gemm,
    workspaces,
)
from ebbtide.vgpu.kernels.context import KernelContext

from .build import meta

AMPERE, HOPPER, BLACKWELL, CONSUMER_BLACKWELL = (8, 6), (9, 0), (10, 0), (12, 0)


def context(
    capability: tuple[int, int] = AMPERE,
    version: tuple[int, int] = (2, 6),
    cuda: tuple[int, int] = (12, 4),
    **environment: str,
) -> KernelContext:
    return KernelContext(
        capability=capability, torch_version=version, cuda_version=cuda, environment=environment
    )


@pytest.mark.parametrize(
    ("capability", "version", "expected"),
    [
        (AMPERE, (2, 6), 8_519_680),
        (AMPERE, (2, 13), 8_519_680),
        ((7, 0), (2, 0), 8_519_680),
        (HOPPER, (2, 0), 33_554_432),
        (HOPPER, (2, 13), 33_554_432),
        (BLACKWELL, (2, 11), 8_519_680),
        (BLACKWELL, (2, 12), 33_554_432),
        (CONSUMER_BLACKWELL, (2, 8), 8_519_680),
        (CONSUMER_BLACKWELL, (2, 13), 33_554_432),
        (AMPERE, (1, 13), 4_194_304),
        (AMPERE, (1, 10), 0),
    ],
)
def test_gemm_workspace(
    capability: tuple[int, int], version: tuple[int, int], expected: int
) -> None:
    assert gemm_workspace_bytes(context(capability, version)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":4096:8", 8 * 4096 * 1024),
        (":16:8", 131_072),
        (":4096:2:16:8", 8_519_680),
        (":0:0", 0),
        ("nonsense", 8_519_680),
    ],
)
def test_workspace_config(text: str, expected: int) -> None:
    assert gemm_workspace_bytes(context(CUBLAS_WORKSPACE_CONFIG=text)) == expected


def test_the_count_was_ignored_until_1_13() -> None:
    old = context(version=(1, 13), CUBLAS_WORKSPACE_CONFIG=":4096:8")
    assert gemm_workspace_bytes(old) == 4_194_304


@given(st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 99)), min_size=1, max_size=4))
def test_config_adds_up(pools: list[tuple[int, int]]) -> None:
    text = "".join(f":{size}:{count}" for size, count in pools)
    wanted = sum(size * 1024 * count for size, count in pools)
    assert gemm_workspace_bytes(context(HOPPER, CUBLAS_WORKSPACE_CONFIG=text)) == wanted


def test_lt_workspace_sizes() -> None:
    assert lt_workspace_bytes(context()) == 1_048_576
    assert lt_workspace_bytes(context(version=(1, 10))) == 0
    assert lt_workspace_bytes(context(CUBLASLT_WORKSPACE_SIZE="32768")) == 33_554_432
    assert lt_workspace_bytes(context(CUBLASLT_WORKSPACE_SIZE="much")) == 1_048_576
    before_the_variable = context(version=(2, 0), CUBLASLT_WORKSPACE_SIZE="32768")
    assert lt_workspace_bytes(before_the_variable) == 1_048_576


def test_a_unified_workspace_bounds_lt() -> None:
    large = context(version=(2, 12), CUBLASLT_WORKSPACE_SIZE="65536")
    assert lt_workspace_bytes(large) == 8_519_680


@pytest.mark.parametrize(
    ("version", "value", "expected"),
    [
        ((2, 7), "1", False),
        ((2, 8), "", False),
        ((2, 8), "1", True),
        ((2, 11), "", False),
        ((2, 12), "", True),
        ((2, 12), "0", False),
        ((2, 15), "", False),
    ],
)
def test_unified(version: tuple[int, int], value: str, expected: bool) -> None:
    ctx = context(version=version, TORCH_CUBLASLT_UNIFIED_WORKSPACE=value)
    assert lt_is_unified(ctx) is expected


MATRICES = (meta(32, 64), meta(64, 16))


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("mm", MATRICES),
        ("bmm", (meta(2, 32, 64), meta(2, 64, 16))),
        ("baddbmm", (meta(2, 32, 16), meta(2, 32, 64), meta(2, 64, 16))),
        ("dot", (meta(8), meta(8))),
        ("mv", (meta(32, 64), meta(64))),
        ("addmv", (meta(32), meta(32, 64), meta(64))),
        ("addmm", (meta(32, 16), *MATRICES)),
        ("addmm_", (meta(32, 16), *MATRICES)),
    ],
)
def test_blas_operations(name: str, inputs: tuple[object, ...]) -> None:
    assert which_gemm(name, inputs, context()) == "blas"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["_scaled_mm", "_int_mm"])
def test_lt_operations(name: str) -> None:
    left, right = meta(32, 64, dtype="float8_e4m3fn"), meta(64, 16, dtype="float8_e4m3fn")
    assert which_gemm(name, (left, right), context(HOPPER)) == "lt"


@pytest.mark.parametrize("name", ["add", "_grouped_mm", "addr", "convolution"])
def test_no_library(name: str) -> None:
    assert which_gemm(name, MATRICES, context()) is None


def test_empty_and_integer_products_touch_no_library() -> None:
    assert which_gemm("mm", (meta(0, 64), meta(64, 16)), context()) is None
    integers = (meta(32, 64, dtype="int64"), meta(64, 16, dtype="int64"))
    assert which_gemm("mm", integers, context()) is None


def test_a_vector_bias_goes_through_lt() -> None:
    assert which_gemm("addmm", (meta(16), *MATRICES), context()) == "lt"


@pytest.mark.parametrize(
    ("bias", "ctx"),
    [
        (meta(16, strides=(2,)), context()),
        (meta(16), context(version=(1, 11))),
        (meta(16), context(cuda=(11, 3))),
        (meta(16), context(DISABLE_ADDMM_CUDA_LT="1")),
        (meta(1, 16), context(version=(2, 9))),
        (meta(1), context()),
    ],
)
def test_a_bias_that_is_copied_first(bias: object, ctx: KernelContext) -> None:
    assert which_gemm("addmm", (bias, *MATRICES), ctx) == "blas"  # type: ignore[arg-type]


def test_a_row_as_bias_is_fused_since_2_10() -> None:
    assert which_gemm("addmm", (meta(1, 16), *MATRICES), context(version=(2, 10))) == "lt"


def test_a_matrix_as_bias_is_fused_before_an_activation_only() -> None:
    inputs = (meta(32, 16), *MATRICES)
    assert which_gemm("_addmm_activation", inputs, context(version=(2, 10))) == "lt"
    assert which_gemm("_addmm_activation", inputs, context(version=(2, 9))) == "blas"
    assert which_gemm("addmm", inputs, context(version=(2, 10))) == "blas"


def test_beta_other_than_one() -> None:
    assert which_gemm("addmm", (meta(16), *MATRICES), context(), beta=0.5) == "blas"


def test_one_column_is_no_lt_product() -> None:
    inputs = (meta(1), meta(32, 64), meta(64, 1))
    assert which_gemm("addmm", inputs, context()) == "blas"


def test_one_row_is_no_lt_product_since_2_10() -> None:
    inputs = (meta(16), meta(1, 64), meta(64, 16))
    assert which_gemm("addmm", inputs, context(version=(2, 9))) == "lt"
    assert which_gemm("addmm", inputs, context(version=(2, 10))) == "blas"


def test_old_cuda_wants_dense_half_matrices() -> None:
    sliced = meta(32, 64, dtype="float16", strides=(128, 1))
    inputs = (meta(16, dtype="float16"), sliced, meta(64, 16, dtype="float16"))
    assert which_gemm("addmm", inputs, context(cuda=(11, 8))) == "blas"
    assert which_gemm("addmm", inputs, context(cuda=(12, 1))) == "lt"
    huge = (meta(16), meta(65535 * 32, 64), meta(64, 16))
    assert which_gemm("addmm", huge, context(cuda=(11, 8))) == "blas"
    assert which_gemm("addmm", huge, context(cuda=(12, 4))) == "lt"


def described(name: str, ctx: KernelContext) -> list[tuple[str, int, str]]:
    found = workspaces(name, (meta(16), *MATRICES), ctx)
    return [(workspace.library, workspace.nbytes, workspace.held) for workspace in found]


BLAS = ("blas", 8_519_680, "handle")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((1, 10), []),
        ((2, 6), [BLAS, ("lt", 1_048_576, "call")]),
        ((2, 9), [BLAS, ("lt", 1_048_576, "handle")]),
        ((2, 13), [BLAS]),
        ((2, 15), [("lt", 1_048_576, "call")]),
    ],
)
def test_what_a_fused_bias_holds(
    version: tuple[int, int], expected: list[tuple[str, int, str]]
) -> None:
    assert described("addmm", context(version=version)) == expected


def test_a_plain_product_holds_blas_alone() -> None:
    found = workspaces("mm", MATRICES, context())
    assert [(w.library, w.nbytes, w.held) for w in found] == [BLAS]


def test_since_2_15_each_product_allocates_and_frees() -> None:
    found = workspaces("mm", MATRICES, context(HOPPER, (2, 15)))
    assert [(w.nbytes, w.held) for w in found] == [(33_554_432, "call")]
    cached = context(HOPPER, (2, 15), TORCH_CUBLAS_WORKSPACE_CACHE="1")
    assert [w.held for w in workspaces("mm", MATRICES, cached)] == ["handle"]


def test_no_workspace_for_what_is_no_product() -> None:
    assert workspaces("add", MATRICES, context()) == ()


def test_contiguity_ignores_dimensions_of_one() -> None:
    assert is_contiguous(meta(1, 4, strides=(99, 1)))
    assert not is_contiguous(meta(2, 4, strides=(8, 1)))
    assert is_contiguous(meta(0, 4, strides=(7, 3)))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple))
def test_transposing_twice_changes_nothing(shape: tuple[int, ...]) -> None:
    tensor = meta(*shape)
    assert transposed(transposed(tensor)) == tensor
    assert is_contiguous(tensor)
    assert is_contiguous(transposed(tensor)) is (min(shape[-2:]) == 1)
