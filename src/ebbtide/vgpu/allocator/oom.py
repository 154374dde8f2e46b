"""Out of memory, in torch's own words.

Source: the strings of torch 2.14.1's `libc10_cuda.so` and `format_size` of
pytorch/pytorch's `c10/core/CachingDeviceAllocator.h`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.units import GiB, KiB, MiB


def torch_size(nbytes: int) -> str:
    """`nbytes` as torch writes it: ``"2.00 GiB"``; 1 GiB is ``"1024.00 MiB"``."""
    if nbytes <= KiB:
        return f"{nbytes} bytes"
    for unit, factor in (("KiB", KiB), ("MiB", MiB)):
        if nbytes <= factor << 10:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{nbytes / GiB:.2f} GiB"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFigures:
    """The figures that torch's message gives, in bytes.

    Attributes:
        asked: what was to be taken from the driver.
        total: the device's memory.
        free: what the driver has left.
        process: what this process holds, its context included.
        allowed: the limit of `set_per_process_memory_fraction`, None if there is none.
        allocated: handed out by the allocator.
        private_cached: cached in private pools, which torch counts as allocated.
        reserved: taken from the driver by the allocator.
    """

    asked: int
    total: int
    free: int
    process: int
    allowed: int | None
    allocated: int
    private_cached: int
    reserved: int


class OutOfMemory(Exception):
    """No memory for a request, after everything that could be returned was returned.

    Not an `EbbtideError`: it is what the modelled device answers to the modelled
    program, and the virtual GPU raises it as `torch.OutOfMemoryError`.

    Attributes:
        figures: the numbers in the message.
    """

    def __init__(self, figures: MemoryFigures, device: int = 0) -> None:
        self.figures = figures
        super().__init__(_message(figures, device))


def _message(f: MemoryFigures, device: int) -> str:
    allowed = "" if f.allowed is None else f"{torch_size(f.allowed)} allowed; "
    private = ""
    if f.private_cached:
        private = (
            f"with {torch_size(f.private_cached)} allocated in private pools (e.g., CUDA Graphs), "
        )
    held = f.allocated + f.private_cached
    return (
        f"CUDA out of memory. Tried to allocate {torch_size(f.asked)}. "
        f"GPU {device} has a total capacity of {torch_size(f.total)} "
        f"of which {torch_size(f.free)} is free. "
        "Including non-PyTorch memory, this process has "
        f"{torch_size(f.process)} memory in use. {allowed}"
        f"Of the allocated memory {torch_size(held)} is allocated by PyTorch, {private}"
        f"and {torch_size(f.reserved - held)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
