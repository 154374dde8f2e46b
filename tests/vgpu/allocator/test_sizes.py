from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.units import GiB, KiB, MiB
from ebbtide.vgpu.allocator.sizes import (
    MIN_BLOCK,
    round_size,
    round_to_block,
    round_to_division,
    segment_bytes,
)


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [(0, 512), (1, 512), (512, 512), (513, 1024), (1024, 1024), (MiB, MiB), (MiB + 1, MiB + 512)],
)
def test_blocks_are_multiples_of_512(nbytes: int, block: int):
    assert round_to_block(nbytes) == block


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [
        (512, 2 * MiB),
        (MiB, 2 * MiB),
        (MiB + 512, 20 * MiB),
        (10 * MiB - 512, 20 * MiB),
        (10 * MiB, 10 * MiB),
        (10 * MiB + 512, 12 * MiB),
        (31 * MiB, 32 * MiB),
        (1 * GiB, 1 * GiB),
    ],
)
def test_segments(rounded: int, segment: int):
    assert segment_bytes(rounded) == segment


def test_the_large_segment_can_be_configured():
    assert segment_bytes(2 * MiB, 64 * MiB) == 64 * MiB
    assert segment_bytes(MiB, 64 * MiB) == 2 * MiB
    assert segment_bytes(12 * MiB, 64 * MiB) == 12 * MiB


@pytest.mark.parametrize(
    ("nbytes", "divisions", "rounded"),
    # The first is the example in torch's own comment.
    [(1200, 4, 1280), (1024, 4, 1024), (1025, 4, 1280), (2047, 4, 2048), (1200, 1, 2048)],
)
def test_rounding_to_divisions(nbytes: int, divisions: int, rounded: int):
    assert round_to_division(nbytes, divisions) == rounded


def test_more_divisions_than_bytes_round_to_the_next_power():
    assert round_to_division(3, 8) == 4


def test_small_requests_are_not_rounded_to_divisions():
    table = (8,) * 16
    assert round_size(100, table) == MIN_BLOCK
    assert round_size(8 * MIN_BLOCK, table) == 8 * MIN_BLOCK
    assert round_size(8 * MIN_BLOCK + 1, table) == round_to_division(8 * MIN_BLOCK + 1, 8)


def test_each_interval_has_its_own_divisions():
    table = [0] * 16
    table[0], table[3] = 2, 4
    assert round_size(9 * KiB, table) == 12 * KiB  # below 1 MiB counts as the first
    assert round_size(3 * MiB + 5, table) == 3 * MiB + 512  # 2 MiB: not configured
    assert round_size(9 * MiB, table) == 10 * MiB
    table[15] = 2
    assert round_size(200 * GiB, table) == 256 * GiB  # above 64 GiB counts as the last


@given(st.integers(1, 1 << 45), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_division_steps_are_even(nbytes: int, divisions: int):
    rounded = round_to_division(nbytes, divisions)
    power = 1 << (nbytes.bit_length() - 1)
    assert nbytes <= rounded <= 2 * power
    if power >= divisions:
        assert rounded % (power // divisions) == 0
        assert rounded - nbytes < max(1, power // divisions) or rounded == nbytes


@given(st.integers(1, 1 << 40))
def test_blocks_waste_less_than_512(nbytes: int):
    block = round_to_block(nbytes)
    assert block % 512 == 0
    assert 0 <= block - nbytes < 512


@given(st.integers(1, 1 << 36).map(round_to_block))
def test_segments_are_whole_pages(rounded: int):
    segment = segment_bytes(rounded)
    assert segment >= rounded
    assert segment % (2 * MiB) == 0
