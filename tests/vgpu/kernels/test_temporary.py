from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.temporary import (
    Scratch,
    accumulator_bytes,
    argument,
    copy_bytes,
    exact,
    round_up,
    rounded,
    span,
    tensors_of,
)

from .build import meta


@given(st.lists(st.integers(0, 1 << 40), max_size=5))
def test_rounding_counts_blocks(sizes: list[int]) -> None:
    total = rounded(*sizes)
    assert total % 512 == 0
    assert sum(sizes) <= total < sum(sizes) + 512 * len(sizes) + 1


def test_exact_is_one_stage() -> None:
    assert exact("both", 2, 1, 513) == (
        Scratch(low=1536, likely=1536, high=1536, after_outputs=2, label="both"),
    )
    assert exact("nothing", 0, 0, 0) == ()


def test_span_rounds_each_bound() -> None:
    (found,) = span("some", 1, 0, 1, 600)
    assert (found.low, found.likely, found.high) == (0, 512, 1024)
    assert span("none", 0, 0, 0, 0) == ()


@pytest.mark.parametrize("sizes", [(-1, 0, 0), (2, 1, 3), (0, 5, 4)])
def test_bounds_are_in_order(sizes: tuple[int, int, int]) -> None:
    low, likely, high = sizes
    with pytest.raises(ValueError, match="low <= likely <= high"):
        Scratch(low=low, likely=likely, high=high, after_outputs=0, label="x")


def test_tensors_are_found_in_lists() -> None:
    a, b = meta(2), meta(3)
    assert tensors_of((a, 1.0, (None, b), "text", [a])) == [a, b, a]


def test_arguments_that_were_left_out() -> None:
    assert argument((1, 2), 1) == 2
    assert argument((1, 2), 2, "default") == "default"


def test_only_what_is_not_contiguous_is_copied() -> None:
    transposed = meta(4, 8, strides=(1, 4))
    assert copy_bytes(meta(4, 8), transposed, None) == (128,)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float16", 4),
        ("bfloat16", 4),
        ("float32", 4),
        ("float64", 8),
        ("int64", 8),
        ("int32", 8),
        ("bool", 8),
        ("complex64", 8),
        ("complex128", 16),
    ],
)
def test_accumulation_types(dtype: str, size: int) -> None:
    assert accumulator_bytes(dtype) == size


@given(st.integers(0, 10**9), st.integers(1, 4096))
def test_round_up(value: int, step: int) -> None:
    up = round_up(value, step)
    assert up % step == 0
    assert value <= up < value + step
