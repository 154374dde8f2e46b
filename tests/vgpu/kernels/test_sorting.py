from __future__ import annotations

import pytest

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.indexing import radix_sort_bytes
from ebbtide.vgpu.kernels.scratch import Scratch, scratch
from ebbtide.vgpu.kernels.temporary import rounded

from .build import meta

CTX = KernelContext(capability=(8, 0), torch_version=(2, 13))


def sort(*shape: int, dim: int = -1) -> tuple[Scratch, ...]:
    tensor = meta(*shape)
    return scratch("sort", (tensor, dim), (tensor, meta(*shape, dtype="int64")), CTX)


def test_short_rows_are_sorted_in_place() -> None:
    assert sort(1000, 4096) == ()


def test_one_long_row() -> None:
    (stage,) = sort(1_000_000)
    assert stage.likely == rounded(8_000_000, radix_sort_bytes(1_000_000, 4, 8))
    assert stage.after_outputs == 2


def test_a_few_rows_are_sorted_together() -> None:
    """SortStable.cu: below 128 rows the row's number is part of what is sorted."""
    (stage,) = sort(8, 50_000)
    assert stage.low == 8 * 50_000 * 16
    assert stage.low < stage.likely < stage.high


def test_many_rows_are_sorted_apart() -> None:
    (stage,) = sort(500, 50_000)
    numbers = 500 * 50_000
    assert stage.likely == rounded(numbers * 8, numbers * 12)


def test_another_dimension_is_moved_first() -> None:
    (across,), (along,) = sort(50_000, 500, dim=0), sort(500, 50_000)
    numbers = 50_000 * 500
    assert across.likely - along.likely == rounded(numbers * 4, numbers * 4, numbers * 8)


@pytest.mark.parametrize(
    ("shape", "k", "expected"),
    [
        ((8, 1000), 5, 0),
        ((8, 50_000), 5, 8 * 1024 * 4),
        ((64, 50_000), 5, 0),
        ((2, 50_000), 2000, 2 * 2000 * 12 * 2),
    ],
)
def test_topk(shape: tuple[int, ...], k: int, expected: int) -> None:
    found = scratch("topk", (meta(*shape), k, -1, True, True), (meta(shape[0], k),) * 2, CTX)
    assert sum(stage.likely for stage in found) == rounded(expected)


def test_scans_of_one_dimension_only() -> None:
    assert scratch("cumsum", (meta(64, 1000), 1), (meta(64, 1000),), CTX) == ()
    (stage,) = scratch("cumsum", (meta(1 << 20), 0), (meta(1 << 20),), CTX)
    assert 16_000 < stage.likely < 32_000


def test_unique_sorts_and_keeps_positions_if_asked() -> None:
    tensor = meta(100_000, dtype="int64")
    (plain,) = scratch("_unique2", (tensor, True, False, False), (tensor,), CTX)
    (inverse,) = scratch("_unique2", (tensor, True, True, False), (tensor,), CTX)
    assert plain.likely == rounded(800_000, radix_sort_bytes(100_000, 8, 0))
    assert inverse.likely - plain.likely == 3 * rounded(800_000)


def test_multinomial() -> None:
    weights = meta(32, 50_000)
    one = scratch("multinomial", (weights, 1), (meta(32, 1, dtype="int64"),), CTX)
    assert [stage.likely for stage in one] == [weights.nbytes]
    many = scratch("multinomial", (weights, 5, True), (meta(32, 5, dtype="int64"),), CTX)
    assert [stage.likely for stage in many] == [2 * weights.nbytes]


def test_random_permutations_are_sorted() -> None:
    (stage,) = scratch("randperm", (1000,), (meta(1000, dtype="int64"),), CTX)
    assert stage.likely == rounded(4000, 4000, 8000, radix_sort_bytes(1000, 4, 8))
    assert scratch("randperm", (0,), (meta(0, dtype="int64"),), CTX) == ()
