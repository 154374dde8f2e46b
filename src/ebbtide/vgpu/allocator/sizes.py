"""The sizes by which CUDA's caching allocator rounds requests and takes segments.

Source: the constants of torch 2.13's `c10/core/AllocatorConfig.h` and the
rounding of `c10/cuda/CUDACachingAllocator.cpp` (pytorch/pytorch, 2.5 to 2.14).
"""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.units import MiB

MIN_BLOCK = 512
"""Every block is a multiple of this many bytes."""
SMALL_SIZE = 1 * MiB
"""The largest request that the small pool serves, in bytes."""
SMALL_SEGMENT = 2 * MiB
"""What the small pool takes from the driver at a time, in bytes."""
MIN_LARGE_ALLOC = 10 * MiB
"""Requests from here up get a segment of their own size, in bytes."""
ROUND_LARGE = 2 * MiB
"""Segments of large requests are multiples of this many bytes."""
LARGE_SEGMENT = 20 * MiB
"""The segment for requests between `SMALL_SIZE` and `MIN_LARGE_ALLOC`, unless configured."""
UNLIMITED = (1 << 64) - 1
"""`max_split_size` where nothing is configured."""
POWER2_INTERVALS = 16
"""Divisions are configured for the intervals from 1 MiB to 64 GiB, one a power of two."""


def round_to_block(nbytes: int) -> int:
    """`nbytes` rounded up to whole blocks of `MIN_BLOCK` bytes, at least one."""
    return (nbytes + 511) & -512 if nbytes > MIN_BLOCK else MIN_BLOCK


def round_to_division(nbytes: int, divisions: int) -> int:
    """`nbytes` rounded up to the next of `divisions` equal steps between powers of two.

    1200 with 4 divisions lies between 1024 and 2048, whose steps are 1024, 1280,
    1536 and 1792: the answer is 1280.
    """
    if nbytes & (nbytes - 1) == 0:
        return nbytes
    floor = 1 << (nbytes.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return -(-nbytes // step) * step


def round_size(nbytes: int, divisions: Sequence[int]) -> int:
    """The block that a request of `nbytes` needs, in bytes.

    Args:
        nbytes: the request, in bytes.
        divisions: `POWER2_INTERVALS` numbers of `roundup_power2_divisions`, or empty.
    """
    if divisions and nbytes >= MIN_BLOCK:
        interval = min(max(nbytes.bit_length() - 21, 0), POWER2_INTERVALS - 1)
        steps = divisions[interval]
        if steps > 1 and nbytes > MIN_BLOCK * steps:
            return round_to_division(nbytes, steps)
    return round_to_block(nbytes)


def segment_bytes(rounded: int, large_segment: int = LARGE_SEGMENT) -> int:
    """What is taken from the driver for a block of `rounded` bytes, in bytes."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE_ALLOC:
        return large_segment
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE
