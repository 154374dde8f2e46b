from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels import products
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.scratch import scratch
from ebbtide.vgpu.kernels.temporary import rounded
from ebbtide.vgpu.tensors import TensorMeta

from .build import meta

CTX = KernelContext(capability=(8, 0), torch_version=(2, 13), sm_count=108)


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "relu_",
        "gather",
        "scatter_add_",
        "native_dropout",
        "nll_loss_forward",
        "max_pool2d_with_indices",
        "upsample_bilinear2d",
        "cat",
        "_fused_adamw_",
        "_foreach_add_",
        "_amp_foreach_non_finite_check_and_unscale_",
        "an_operation_of_somebody_else",
    ],
)
def test_most_operations_allocate_their_outputs_alone(name: str) -> None:
    tensor = meta(64, 64, strides=(1, 64))
    assert scratch(name, (tensor, tensor), (tensor,), CTX) == ()


def test_in_place_names_make_no_difference() -> None:
    arguments = (meta(4), (meta(3, dtype="int64"),), meta(3), True)
    assert scratch("index_put_", arguments, (), CTX) == scratch("index_put", arguments, (), CTX)


def test_no_tensor_no_temporary() -> None:
    assert scratch("sum", (), (), CTX) == ()


def test_norms_of_many_tensors() -> None:
    """ForeachReduceOp.cu: the largest of the tensors has two chunks of 65,536."""
    tensors = (meta(100_000), meta(10), meta(65_536))
    (stage,) = scratch("_foreach_norm", (tensors, 2), (), CTX)
    assert stage.likely == rounded(3 * 2 * 4)


TRANSPOSED = meta(64, 32, strides=(1, 64))
SLICED_ROWS = meta(64, 32, strides=(128, 1))
EVERY_OTHER = meta(64, 32, strides=(128, 2))
EXPANDED = meta(64, 32, strides=(0, 0))


@pytest.mark.parametrize(
    ("matrix", "copied"),
    [
        (meta(64, 32), False),
        (TRANSPOSED, False),
        (SLICED_ROWS, False),
        (EVERY_OTHER, True),
        (EXPANDED, True),
        (meta(0, 32), False),
        (meta(4, 64, 32), False),
        (meta(4, 64, 32, strides=(32, 128, 1)), False),
        (meta(4, 64, 32, strides=(4096, 64, 2)), True),
        (meta(5), False),
    ],
)
def test_matrices_that_cublas_cannot_read(matrix: TensorMeta, copied: bool) -> None:
    assert products.needs_copy(matrix) is copied


def test_products_copy_them() -> None:
    (stage,) = scratch("mm", (EVERY_OTHER, meta(32, 16)), (meta(64, 16),), CTX)
    assert (stage.likely, stage.after_outputs) == (64 * 32 * 4, 1)
    bias = (meta(16), meta(64, 32), meta(32, 16))
    assert scratch("addmm", bias, (meta(64, 16),), CTX) == ()
    # The bias may lie as it likes.
    odd = (meta(16, strides=(3,)), meta(64, 32), meta(32, 16))
    assert scratch("addmm", odd, (meta(64, 16),), CTX) == ()


@given(st.permutations(range(4)), st.lists(st.integers(1, 5), min_size=4, max_size=4))
def test_a_permuted_tensor_is_dense(order: list[int], shape: list[int]) -> None:
    tensor = meta(*shape)
    permuted = TensorMeta(
        tuple(tensor.shape[d] for d in order),
        tuple(tensor.strides[d] for d in order),
        tensor.dtype,
        tensor.itemsize,
    )
    assert products.is_dense(permuted)
    doubled = permuted._replace(strides=tuple(2 * stride for stride in permuted.strides))
    assert products.is_dense(doubled) is (tensor.numel == 1)


def test_grouped_products_have_a_span() -> None:
    x, w = meta(64, 32, dtype="bfloat16"), meta(4, 32, 16, dtype="bfloat16")
    (stage,) = scratch("_grouped_mm", (x, w, meta(4, dtype="int32")), (meta(64, 16),), CTX)
    assert stage.low == 0 < stage.likely < stage.high


def test_smooth_transforms_need_no_work_area() -> None:
    x = meta(8, 1024, dtype="complex64")
    (stage,) = scratch("_fft_c2c", (x, (1,), 0, True), (x,), CTX)
    assert (stage.low, stage.likely, stage.high) == (0, 0, 4 * x.nbytes)


def test_prime_transforms_need_as_much_as_their_data() -> None:
    x = meta(8, 1021, dtype="complex64")
    (stage,) = scratch("_fft_c2c", (x, (1,), 0, True), (x,), CTX)
    assert stage.likely == rounded(x.nbytes)


def test_the_way_back_from_complex_clones_its_input() -> None:
    x = meta(8, 513, dtype="complex64")
    (stage,) = scratch("_fft_c2r", (x, (1,), 2, 1024), (meta(8, 1024),), CTX)
    assert stage.low == rounded(x.nbytes)


@pytest.mark.parametrize(("name", "share"), [("_linalg_svd", 3), ("linalg_qr", 1)])
def test_decompositions_have_a_span(name: str, share: int) -> None:
    matrix = meta(256, 256)
    (stage,) = scratch(name, (matrix,), (matrix, matrix), CTX)
    assert stage.low == 0
    assert stage.likely == share * matrix.nbytes
    assert stage.high == stage.likely + 3 * matrix.nbytes
