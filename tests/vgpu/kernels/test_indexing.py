"""Sizes worked out from Embedding.cu, EmbeddingBackwardKernel.cu and Indexing.cu."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.indexing import radix_sort_bytes
from ebbtide.vgpu.kernels.scratch import scratch
from ebbtide.vgpu.kernels.temporary import rounded

from .build import meta

CTX = KernelContext(capability=(8, 0), torch_version=(2, 13))
DETERMINISTIC = KernelContext(capability=(8, 0), torch_version=(2, 13), deterministic=True)


def embedding(tokens: int, width: int, words: int, *, by_frequency: bool = False) -> list[int]:
    grad, indices = meta(tokens, width), meta(tokens, dtype="int64")
    arguments = (grad, indices, words, -1, by_frequency)
    found = scratch("embedding_dense_backward", arguments, (meta(words, width),), CTX)
    return [stage.likely for stage in found]


def test_few_indices_need_nothing() -> None:
    assert embedding(3072, 768, 50257) == []


def test_many_indices_are_sorted_and_summed_in_segments() -> None:
    """4,096 tokens: 409 + 4,096 partial segments of 768 floats, and their tables."""
    sorting, sums = embedding(4096, 768, 50257)
    pair = 4096 * 8
    assert sorting == rounded(pair, pair, pair, radix_sort_bytes(4096, 8, 8))
    partial = 4096 // 10 + 4096
    tables = (pair, pair, pair, pair, pair, partial * 8, 8, 8)
    assert sums == rounded(*tables, partial * 768 * 4)


def test_segments_are_no_more_than_words() -> None:
    """30,000 tokens of an alphabet of 100: 3,000 + 100 segments."""
    _, sums = embedding(30_000, 64, 100)
    assert 3100 * 64 * 4 < sums < 3100 * 64 * 4 + 30_000 * 8 * 3 + 20_000 * 8


def test_frequencies_are_counted() -> None:
    plain, counted = embedding(4096, 64, 100)[1], embedding(4096, 64, 100, by_frequency=True)[1]
    assert counted - plain == 4096 * 8
    assert len(embedding(16, 64, 100, by_frequency=True)) == 2


def test_half_precision_is_summed_in_float32() -> None:
    grad = meta(4096, 768, dtype="float16")
    indices = meta(4096, dtype="int64")
    found = scratch(
        "embedding_dense_backward", (grad, indices, 50257, -1, False), (meta(50257, 768),), CTX
    )
    assert found[1].likely == embedding(4096, 768, 50257)[1]
    assert found[1].after_outputs == 1


def test_a_gradient_that_is_not_contiguous_is_copied() -> None:
    grad = meta(16, 8, strides=(1, 16))
    arguments = (grad, meta(16, dtype="int64"), 100, -1, False)
    (stage,) = scratch("embedding_dense_backward", arguments, (meta(100, 8),), CTX)
    assert stage.likely == 512
    assert stage.label == "contiguous gradient"


def index_put(*, accumulate: bool, ctx: KernelContext = CTX, values: object = None) -> list[int]:
    tensor, rows = meta(1000, 64), meta(5000, dtype="int64")
    arguments = (tensor, (rows,), values or meta(5000, 64), accumulate)
    return [s.likely for s in scratch("index_put_", arguments, (tensor,), ctx)]


def test_index_put_sorts_only_to_accumulate() -> None:
    linear = 5000 * 8
    sorting = rounded(linear, linear, linear, linear, radix_sort_bytes(5000, 8, 8, 10))
    assert index_put(accumulate=False) == []
    assert index_put(accumulate=True) == [sorting]
    assert index_put(accumulate=False, ctx=DETERMINISTIC) == [sorting]


def test_values_that_broadcast_are_written_out() -> None:
    broadcast = index_put(accumulate=True, values=meta(1, 64))
    assert broadcast[0] - index_put(accumulate=True)[0] == rounded(5000 * 64 * 4)


def test_masks_become_indices() -> None:
    """A mask of (100, 20) true at 300 places: two columns of int64."""
    tensor, mask = meta(100, 20, 8), meta(100, 20, dtype="bool")
    (stage,) = scratch("index", (tensor, (mask,)), (meta(300 // 3, 8),), CTX)
    assert stage.likely == rounded(100 * 2 * 8)
    assert scratch("index", (tensor, (meta(50, dtype="int64"),)), (meta(50, 20, 8),), CTX) == ()


def test_masked_select() -> None:
    (stage,) = scratch(
        "masked_select", (meta(64, 64), meta(64, 64, dtype="bool")), (meta(4096),), CTX
    )
    assert stage.likely == 4096 * 2 * 8


def test_nonzero_is_small() -> None:
    (stage,) = scratch("nonzero", (meta(1 << 20, dtype="bool"),), (meta(100, 1),), CTX)
    assert stage.low == 512
    assert stage.high < 1 << 20


@given(st.integers(1, 1 << 22), st.sampled_from([1, 2, 4, 8]), st.sampled_from([4, 8]))
def test_sorting_keeps_a_second_buffer_of_pairs(count: int, key: int, value: int) -> None:
    size = radix_sort_bytes(count, key, value)
    if count <= 2304:
        assert size == 1
    else:
        assert size >= count * (key + value)
        assert size <= count * (key + value) * 1.26 + 32 * 1024


def test_a_recorded_sort() -> None:
    """wed_medium_1024_training's backward of an embedding of 10,000 words by 4,096 tokens.

    Allocations 13,111 to 13,118 of the public snapshot (Wedsonlin/assignment2-systems @
    87b08641, MIT): four tables of 32,768 bytes and CUB's 72,191 alive together.
    """
    assert radix_sort_bytes(4096, 8, 8, 14) == 72_191
    assert radix_sort_bytes(512, 8, 8, 14) == 1
    weight, tokens = meta(10_000, 1024), meta(4, 1024, dtype="int64")
    arguments = (weight, (tokens,), meta(4, 1024, 1024), True)
    (stage,) = scratch("index_put", arguments, (weight,), CTX)
    assert stage.likely == 4 * 32_768 + 72_192
