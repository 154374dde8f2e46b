"""Launch configurations worked out by hand from Reduce.cuh.

RTX 3060: 28 multiprocessors of 1,536 threads; A100: 108 of 2,048.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.reductions import accumulated_bytes, global_reduce, lay_out, scratch

from .build import meta

RTX3060 = KernelContext(capability=(8, 6), torch_version=(2, 6), sm_count=28, threads_per_sm=1536)
A100 = KernelContext(capability=(8, 0), torch_version=(2, 13), sm_count=108, threads_per_sm=2048)


def test_rows_of_a_bias_gradient() -> None:
    """sum(0) of (4096, 1024): blocks of 32 x 4 threads, four outputs a thread.

    Eight blocks reach all columns; 336 fit (28 x 1536/128), so 42 share each column's
    4,096 values: 1,024 x 42 partial sums, times 32 x 4 because lanes hold outputs.
    """
    assert global_reduce(meta(4096, 1024), (0,), 4, RTX3060) == (1024 * 42 * 4 * 32 * 4, 32)


def test_a_recorded_reduction() -> None:
    """Gradients of RMSNorm's weight over 4 x 1,024 rows of 1,024.

    Allocations 3,536 and 3,537 of wed_medium_1024_training (Wedsonlin/assignment2-systems @
    87b08641, MIT): 33,554,432 bytes and 32. 49 norms have them; with 4 x 128 rows none.
    """
    assert global_reduce(meta(4, 1024, 1024), (0, 1), 4, A100) == (33_554_432, 32)
    assert global_reduce(meta(4, 128, 1024), (0, 1), 4, A100) == (0, 0)


def test_everything_to_one_value() -> None:
    """Ten million values: 512 lanes of four; 84 blocks fit and share them."""
    staging, semaphores = global_reduce(meta(10_000_000), (0,), 4, RTX3060)
    assert (staging, semaphores) == (4 * 84, 4)


def test_short_rows_need_no_second_block() -> None:
    assert global_reduce(meta(32, 10), (1,), 4, RTX3060) == (0, 0)
    assert global_reduce(meta(4096, 4096), (1,), 4, RTX3060) == (0, 0)


def test_wide_outputs_fill_the_gpu_without_sharing() -> None:
    assert global_reduce(meta(4096, 50257), (0,), 4, RTX3060) == (0, 0)


def test_a_larger_gpu_shares_among_more_blocks() -> None:
    small, _ = global_reduce(meta(1 << 24), (0,), 4, RTX3060)
    large, _ = global_reduce(meta(1 << 24), (0,), 4, A100)
    assert large == 4 * 108 * 4  # 2,048 / 512 blocks on each of 108
    # 84 blocks fit on the small one, but a thread shall not have more than 256 values.
    assert small == 4 * (1 << 24) // 512 // 256


def test_batch_and_area_of_images() -> None:
    """Sums for each channel: (32, 64, 56, 56) over all but dimension 1.

    3,136 values lie together, the batch apart: 64 outputs, 100,352 inputs each.
    """
    loop = lay_out(meta(32, 64, 56, 56), (0, 2, 3))
    assert (loop.sizes, loop.reduced) == ((3136, 32, 64), 2)
    assert (loop.outputs, loop.inputs) == (64, 100_352)
    staging, semaphores = global_reduce(meta(32, 64, 56, 56), (0, 2, 3), 4, RTX3060)
    assert staging % (4 * 64) == 0
    assert semaphores % 4 == 0


def test_neighbouring_dimensions_become_one() -> None:
    assert lay_out(meta(2, 3, 4), (0, 1, 2)).sizes == (24,)
    assert lay_out(meta(2, 3, 4), (2,)).sizes == (4, 6)
    assert lay_out(meta(2, 3, 4), (1,)).sizes == (3, 4, 2)
    assert lay_out(meta(1, 3, 1), (1,)).sizes == (3,)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple),
    st.data(),
)
def test_the_layout_loses_nothing(shape: tuple[int, ...], data: st.DataObject) -> None:
    dims = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    loop = lay_out(meta(*shape), tuple(dims))
    assert loop.inputs == math.prod(shape[d] for d in dims)
    assert loop.inputs * loop.outputs == math.prod(shape)
    assert list(loop.strides[: loop.reduced]) == sorted(loop.strides[: loop.reduced])


@given(
    st.integers(1, 1 << 20),
    st.integers(1, 1 << 12),
    st.booleans(),
    st.sampled_from([RTX3060, A100]),
)
def test_staging_holds_every_output(
    inputs: int, outputs: int, last: bool, ctx: KernelContext
) -> None:
    tensor = meta(outputs, inputs) if last else meta(inputs, outputs)
    staging, semaphores = global_reduce(tensor, (1,) if last else (0,), 4, ctx)
    assert (staging == 0) == (semaphores == 0)
    if staging:
        assert staging >= 2 * 4 * outputs
        # No more blocks than a quarter more than fit: the rest would wait.
        assert semaphores // 4 <= ctx.sm_count * ctx.threads_per_sm


@pytest.mark.parametrize(
    ("name", "dtype", "size"),
    [
        ("sum", "float16", 4),
        ("mean", "float64", 8),
        ("sum", "int64", 8),
        ("amax", "float16", 2),
        ("max", "float32", 16),
        ("argmin", "float16", 16),
        ("var", "float32", 16),
        ("std_mean", "float64", 32),
        ("any", "bool", 1),
        ("linalg_vector_norm", "bfloat16", 4),
    ],
)
def test_what_a_thread_carries(name: str, dtype: str, size: int) -> None:
    assert accumulated_bytes(name, meta(4, dtype=dtype)) == size


@pytest.mark.parametrize(
    "arguments",
    [
        (meta(4096, 1024), (0,), True),
        (meta(4096, 1024), (-2,), False),
        (meta(4096, 1024), 0),
    ],
)
def test_dimensions_as_they_come(arguments: tuple[object, ...]) -> None:
    (stage,) = scratch("sum", arguments, (meta(1024),), RTX3060)
    assert stage.likely == 1024 * 42 * 512 + 512
    assert stage.after_outputs == 1


@pytest.mark.parametrize(
    "arguments", [(meta(1 << 24),), (meta(1 << 24), None), (meta(1 << 24), ())]
)
def test_no_dimensions_means_all(arguments: tuple[object, ...]) -> None:
    (stage,) = scratch("sum", arguments, (meta(),), RTX3060)
    assert stage.likely == 1024


def test_the_maximum_of_two_tensors_is_no_reduction() -> None:
    assert scratch("max", (meta(1 << 20), meta(1 << 20)), (meta(1 << 20),), RTX3060) == ()


def test_norms_have_their_order_first() -> None:
    (stage,) = scratch("linalg_vector_norm", (meta(1 << 24), 2, None), (meta(),), RTX3060)
    assert stage.low == stage.high == 1024


def test_an_empty_tensor() -> None:
    assert scratch("sum", (meta(0, 4),), (meta(),), RTX3060) == ()
