"""Temporaries of sorting, selecting and scanning.

Sources: aten/src/ATen/native/cuda/Sort.cpp, Sort.cu, SortStable.cu, TensorTopK.cpp,
TensorTopK.cu, ScanKernels.cpp, ScanUtils.cuh, Unique.cu, Distributions and
aten/src/ATen/cuda/cub.cuh, of 2.0 to 2.14. CUB's own storage is not in PyTorch's source:
where it decides the size, a span is given.
"""

from __future__ import annotations

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.indexing import radix_sort_bytes
from ebbtide.vgpu.kernels.temporary import (
    Inputs,
    Outputs,
    Scratch,
    argument,
    copy_bytes,
    exact,
    rounded,
    span,
    tensors_of,
)
from ebbtide.vgpu.tensors import TensorMeta

_SMALL_SORT = 4096  # Sort.cpp, should_use_small_sort: sorted in place, in shared memory
_LONG_SEGMENT = 1_000_000  # SortStable.cu: one sort for each segment from here on
_FEW_SEGMENTS = 128  # SortStable.cu: one sort of everything, with the segment in the key
_INDEX = 8


def _segments(tensor: TensorMeta, dim: object) -> tuple[int, int]:
    """Length of what is sorted, and how many there are of it."""
    if not tensor.shape:
        return 1, 1
    last = len(tensor.shape) - 1
    length = tensor.shape[dim if isinstance(dim, int) and abs(dim) <= last else last]
    return length, tensor.numel // length if length else 0


def sort(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`sort(self, dim)`, `sort.stable(self, stable, dim)`, `argsort` likewise."""
    tensor = tensors_of(inputs)[0]
    dims = [a for a in inputs[1:] if isinstance(a, int) and not isinstance(a, bool)]
    length, count = _segments(tensor, dims[0] if dims else -1)
    if length <= _SMALL_SORT or not count:
        return ()
    # Anything but contiguous rows is copied, and so are the results it is sorted into.
    rows = is_last_dimension(tensor, dims)
    copies = rounded(*copy_bytes(tensor))
    if not rows:
        copies += rounded(tensor.nbytes, tensor.nbytes, tensor.numel * _INDEX)
    size = tensor.itemsize
    if count == 1 or length >= _LONG_SEGMENT:
        pairs = rounded(length * _INDEX, radix_sort_bytes(length, size, _INDEX))
        return span("sort", len(outputs), copies + length * _INDEX, copies + pairs, copies + pairs)
    numbers = tensor.numel
    if count < _FEW_SEGMENTS:
        # i_s (two int32 for each element), then keys and pairs sorted twice.
        both = rounded(numbers * 8, numbers * 8, numbers * size)
        both += rounded(radix_sort_bytes(numbers, size, 8))
        return span("sort", len(outputs), copies + numbers * 16, copies + both, copies + 2 * both)
    # DeviceSegmentedRadixSort keeps a second buffer of keys and of indices.
    pairs = rounded(numbers * _INDEX, numbers * (size + _INDEX))
    return span("sort", len(outputs), copies + numbers * _INDEX, copies + pairs, copies + pairs)


def is_last_dimension(tensor: TensorMeta, dims: list[int]) -> bool:
    """Whether the dimension that is sorted is the last one."""
    return not dims or not tensor.shape or dims[0] % len(tensor.shape) == len(tensor.shape) - 1


def topk(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`topk(self, k, dim)`: radix selection, then the k found are sorted if many.

    TensorTopK.cu: up to 20 slices of at least 20,000 elements are selected by several
    blocks, which share counters; results of more than 1,024 elements are sorted by `sort`.
    """
    tensor = tensors_of(inputs)[0]
    length, slices = _segments(tensor, argument(inputs, 2, -1))
    k = int(argument(inputs, 1, 1))
    copies = rounded(*copy_bytes(tensor))
    counters = slices * 1024 * 4 if slices <= 20 and length >= 20_000 else 0
    ordering = slices * k * (tensor.itemsize + _INDEX) * 2 if k > 1024 else 0
    likely = copies + max(counters, ordering)
    return span("selection of the largest", len(outputs), copies, likely, likely + 2 * counters)


def scan(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`cumsum`, `cumprod`, `logcumsumexp`, `cummax`: CUB's tile states for one dimension."""
    tensor = tensors_of(inputs)[0]
    copies = rounded(*copy_bytes(tensor))
    states = 0
    if max(tensor.shape, default=0) == tensor.numel:  # ScanUtils.cuh: only then CUB scans
        states = (tensor.numel // 1024 + 32) * 16
    return span("scan", len(outputs), copies, copies + states, copies + 2 * states)


def unique(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`_unique2(self, sorted, return_inverse, return_counts)`: a sort and its positions."""
    tensor = tensors_of(inputs)[0]
    count, size = tensor.numel, tensor.itemsize
    low = rounded(count * size, radix_sort_bytes(count, size, 0))
    inverse = argument(inputs, 2, False) or argument(inputs, 3, False)
    likely = low + (rounded(count * _INDEX, count * _INDEX, count * _INDEX) if inverse else 0)
    return span("sorting of values", 0, low, likely, likely + count * _INDEX)


def multinomial(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`multinomial(self, num_samples, replacement)`.

    native/Distributions.cpp: without replacement, and for one sample, exponential
    variates divide the weights and the largest quotients win (a copy of the weights).
    With replacement MultinomialKernel.cu normalises and sums the weights (two copies).
    """
    weights = tensors_of(inputs)[0]
    samples, replacement = int(argument(inputs, 1, 1)), bool(argument(inputs, 2, False))
    if replacement and samples > 1:
        return exact("cumulative weights", len(outputs), weights.nbytes, weights.nbytes)
    return exact("exponential variates", 0, weights.nbytes)


def randperm(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`randperm(n)`: random keys are sorted with their positions (Randperm.cu)."""
    count = outputs[0].numel if outputs else 0
    size = outputs[0].itemsize if outputs else _INDEX
    if not count:
        return ()
    pairs = rounded(count * 4, count * 4, count * size, radix_sort_bytes(count, 4, size))
    return span("sorting of random keys", len(outputs), pairs // 2, pairs, pairs * 2)
