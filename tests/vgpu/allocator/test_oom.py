from __future__ import annotations

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.units import GiB, KiB, MiB
from ebbtide.vgpu.allocator import CachingAllocator, MemoryFigures, OutOfMemory
from ebbtide.vgpu.allocator.oom import torch_size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MiB, "1024.00 KiB"),
        (MiB + 1, "1.00 MiB"),
        (20 * MiB, "20.00 MiB"),
        (GiB, "1024.00 MiB"),
        (GiB + MiB, "1.00 GiB"),
        (int(23.55 * GiB), "23.55 GiB"),
    ],
)
def test_sizes_as_torch_writes_them(nbytes: int, text: str):
    assert torch_size(nbytes) == text


def test_the_whole_message():
    """Word for word what torch 2.13 says; the numbers of a public report (2025-09-29)."""
    figures = MemoryFigures(
        asked=576 * MiB,
        total=int(31.36 * GiB),
        free=int(370.69 * MiB),
        process=int(5.55 * GiB),
        allowed=None,
        allocated=int(4.89 * GiB),
        private_cached=0,
        reserved=int(4.89 * GiB) + int(77.08 * MiB),
    )
    assert str(OutOfMemory(figures)) == (
        "CUDA out of memory. Tried to allocate 576.00 MiB. GPU 0 has a total capacity of "
        "31.36 GiB of which 370.69 MiB is free. Including non-PyTorch memory, this process has "
        "5.55 GiB memory in use. Of the allocated memory 4.89 GiB is allocated by PyTorch, and "
        "77.08 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def test_the_numbers_are_the_allocators():
    allocator = CachingAllocator(1 * GiB, other_bytes=400 * MiB, context_bytes=300 * MiB, device=3)
    allocator.malloc(500 * MiB)
    allocator.malloc(2 * MiB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(200 * MiB + 1)
    figures = caught.value.figures
    assert figures == MemoryFigures(
        asked=202 * MiB,
        total=1 * GiB,
        free=1024 * MiB - 400 * MiB - 520 * MiB,
        process=300 * MiB + 520 * MiB,
        allowed=None,
        allocated=502 * MiB,
        private_cached=0,
        reserved=520 * MiB,
    )
    message = str(caught.value)
    assert "GPU 3 has a total capacity of 1024.00 MiB of which 104.00 MiB is free." in message
    assert "this process has 820.00 MiB memory in use." in message
    assert "18.00 MiB is reserved by PyTorch but unallocated." in message


def test_it_is_the_modelled_programs_error_and_not_ours():
    assert not issubclass(OutOfMemory, EbbtideError)


def test_a_request_that_is_tiny_asks_for_a_segment():
    allocator = CachingAllocator(1 * MiB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(10 * KiB)
    assert "Tried to allocate 2.00 MiB." in str(caught.value)
