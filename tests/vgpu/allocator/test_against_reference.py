"""Random requests to the model and to a slow second one: the same addresses, always."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from reference_allocator import NoMemory, ReferenceAllocator

from ebbtide.units import MiB
from ebbtide.vgpu.allocator import AllocatorConfig, Block, CachingAllocator, OutOfMemory

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, MiB + 4096),
    st.sampled_from([512, 513, MiB, MiB + 1, 10 * MiB - 1, 10 * MiB, 20 * MiB, 21 * MiB]),
    st.integers(MiB, 12 * MiB),
    st.integers(9 * MiB, 90 * MiB),
)
REQUESTS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


def play(model: CachingAllocator, reference: ReferenceAllocator, requests) -> None:
    live: list[Block] = []
    for verb, number, stream in requests:
        if verb == "malloc":
            try:
                expected = reference.malloc(number, stream)
            except NoMemory:
                expected = None
            try:
                block = model.malloc(number, stream)
            except OutOfMemory:
                assert expected is None
            else:
                assert block.address == expected
                assert block.requested == number
                live.append(block)
        elif verb == "free" and live:
            block = live.pop(number % len(live))
            address = block.address
            model.free(block)
            reference.free(address)
        elif verb == "empty":
            model.empty_cache()
            reference.empty_cache()
        assert model.memory_allocated() == reference.allocated
        assert model.memory_reserved() == reference.reserved
    assert model.max_memory_allocated() == reference.peak_allocated
    assert model.max_memory_reserved() == reference.peak_reserved


@given(REQUESTS)
def test_without_a_limit(requests):
    play(CachingAllocator(None), ReferenceAllocator(), requests)


@given(REQUESTS, st.integers(20, 300))
def test_with_a_limit_and_retries(requests, mebibytes):
    capacity = mebibytes * MiB
    play(CachingAllocator(capacity), ReferenceAllocator(capacity), requests)


@given(REQUESTS, st.sampled_from([2, 4, 8, 16]))
def test_with_rounding_to_divisions(requests, divisions):
    config = AllocatorConfig.parse(f"roundup_power2_divisions:{divisions}")
    play(CachingAllocator(None, config=config), ReferenceAllocator(divisions=divisions), requests)


@given(REQUESTS, st.sampled_from([20, 21, 40]), st.integers(60, 300))
@settings(max_examples=150)
def test_with_a_limit_on_splitting(requests, largest, mebibytes):
    config = AllocatorConfig.parse(f"max_split_size_mb:{largest}")
    capacity = mebibytes * MiB
    play(
        CachingAllocator(capacity, config=config),
        ReferenceAllocator(capacity, max_split=largest * MiB),
        requests,
    )


@given(REQUESTS, st.integers(0, 64))
def test_what_others_hold_is_missing(requests, mebibytes):
    total, other = 200 * MiB, mebibytes * MiB
    play(CachingAllocator(total, other_bytes=other), ReferenceAllocator(total - other), requests)
