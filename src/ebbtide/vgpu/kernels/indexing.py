"""Temporaries of gathering and scattering by index: embeddings, `index_put`, `nonzero`.

Sources: aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu, Indexing.cu,
Nonzero.cu, and aten/src/ATen/cuda/cub.cuh, of 2.0 to 2.14.
"""

from __future__ import annotations

import math

from ebbtide.vgpu.kernels.blas import is_contiguous
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.temporary import (
    Inputs,
    Outputs,
    Scratch,
    accumulator_bytes,
    argument,
    copy_bytes,
    exact,
    rounded,
    span,
    tensors_of,
)
from ebbtide.vgpu.tensors import TensorMeta

_FEW_INDICES = 3072  # Embedding.cu: up to here one kernel adds without sorting
_ROWS_PER_SEGMENT = 10  # EmbeddingBackwardKernel.cu: NROWS_PER_THREAD
_TILE_PAIRS = 2304  # 256 threads of nine pairs of eight bytes each
_INDEX_BYTES = 8  # linear indices are int64 (Indexing.cu, computeLinearIndex)


def radix_sort_bytes(count: int, key_bytes: int, value_bytes: int, bits: int | None = None) -> int:
    """CUB's temporary storage for sorting `count` pairs out of place.

    cub/device/dispatch/dispatch_radix_sort.cuh: a second buffer of keys and one of values
    (the caller's input must stay), 256 counters of 8 bytes for each pass over 8 bits and
    256 of 4 bytes for each tile, aligned. Few pairs are sorted by one block. Checked
    against a public snapshot (see its test): 72,191 bytes for 4,096 pairs of int64 with 14
    significant bits, 1 byte for 512. The size of a tile is between 2,048 and 4,095 pairs
    there; it is the only guess.

    Args:
        count: number of pairs.
        key_bytes: size of a key; `value_bytes` that of a value.
        value_bytes: size of a value.
        bits: significant bits of the keys; all by default.
    """
    if count <= _TILE_PAIRS:
        return 1
    passes = -(-(8 * key_bytes if bits is None else bits) // 8)
    tiles = -(-count // _TILE_PAIRS)
    return count * (key_bytes + value_bytes) + passes * 256 * 8 + tiles * 256 * 4 + 511


def embedding_backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad)`.

    Up to 3,072 indices one kernel suffices. Beyond, indices are sorted and the rows of
    each index are summed in segments of ten, into a buffer of the accumulation type.
    """
    grad, indices = tensors_of(inputs)[:2]
    weights, by_frequency = int(argument(inputs, 2, 0)), bool(argument(inputs, 4, False))
    copies = copy_bytes(grad)
    count, width = indices.numel, grad.shape[-1] if grad.shape else 1
    if count <= _FEW_INDICES and not by_frequency:
        return exact("contiguous gradient", 0, *copies, *copy_bytes(indices))
    size = indices.itemsize
    sorted_pairs = (count * size, count * size)
    counts = (count * size,) if by_frequency else ()
    sorting = exact(
        "sorting of indices",
        0,
        *copies,
        *sorted_pairs,
        count * size,
        radix_sort_bytes(count, size, size),
    )
    most_segments = min(count, weights) if weights else count
    partial = count // _ROWS_PER_SEGMENT + most_segments
    sums = exact(
        "sums of embedding rows",
        len(outputs),
        *copies,
        *sorted_pairs,
        *counts,
        count * size,  # segment_offsets
        most_segments * size,  # partials_per_segment
        most_segments * size,  # partials_per_segment_offset
        partial * size,  # partial_segment_offset
        partial * width * accumulator_bytes(grad.dtype),  # grad_weight_per_segment
        8,
        8,
    )
    return sorting + sums


def index_put(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`index_put(self, indices, values, accumulate)`: sorted if it accumulates.

    Without accumulation the values are written as they come, unless deterministic
    algorithms are asked for. Boolean masks become indices first.
    """
    tensor, listed, values = argument(inputs, 0), argument(inputs, 1, ()), argument(inputs, 2)
    if not isinstance(tensor, TensorMeta) or not isinstance(listed, tuple | list):
        return ()
    masks = _mask_index_bytes(listed, None)
    if not (argument(inputs, 3, False) or ctx.deterministic):
        return exact("indices of a mask", 0, *masks)
    indices = [item for item in listed if isinstance(item, TensorMeta)]
    plain = [index for index in indices if index.dtype not in {"bool", "uint8"}]
    count = max((index.numel for index in plain), default=0)
    if len(plain) < len(indices):
        count = max(count, *(index.numel for index in indices))
    linear = count * _INDEX_BYTES
    copies = copy_bytes(tensor)
    if isinstance(values, TensorMeta):
        slices = math.prod(tensor.shape[len(listed) :])
        if values.numel < count * slices or not is_contiguous(values):
            copies += (count * slices * values.itemsize,)
    # linearIndex, range, sorted_indices, orig_indices, then CUB's storage.
    rows = tensor.numel // max(math.prod(tensor.shape[len(listed) :]), 1)
    bits = max(rows - 1, 1).bit_length()  # get_num_bits of the largest row
    sorting = radix_sort_bytes(count, _INDEX_BYTES, _INDEX_BYTES, bits)
    return exact("sorting of indices", 0, *masks, *copies, linear, linear, linear, linear, sorting)


def index(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`index(self, indices)`: masks become int64 indices, plain ones cost nothing."""
    listed = argument(inputs, 1, ())
    if not isinstance(listed, tuple | list):
        return ()
    return exact("indices of a mask", 0, *_mask_index_bytes(listed, outputs))


def _mask_index_bytes(
    listed: tuple[object, ...] | list[object], outputs: Outputs | None
) -> tuple[int, ...]:
    """`expandTensors` in IndexingUtils.h: one int64 column for each dimension of a mask."""
    sizes: list[int] = []
    for position, item in enumerate(listed):
        if not isinstance(item, TensorMeta) or item.dtype not in {"bool", "uint8"}:
            continue
        found = item.numel
        if outputs and position < len(outputs[0].shape):
            found = min(found, outputs[0].shape[position])
        sizes.append(found * max(len(item.shape), 1) * _INDEX_BYTES)
    return tuple(sizes)


def masked_select(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`masked_select(self, mask)` is `index` with the mask, both expanded."""
    tensors = tensors_of(inputs)
    rank = max(len(tensor.shape) for tensor in tensors)
    found = outputs[0].numel if outputs else tensors[-1].numel
    return exact("indices of a mask", 0, found * max(rank, 1) * _INDEX_BYTES)


def nonzero(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`nonzero(self)`: the count, CUB's tile states, and a copy of what is not contiguous."""
    tensor = tensors_of(inputs)[0]
    copies = rounded(*copy_bytes(tensor))
    states = tensor.numel // 512 * 16
    return span("selection", 0, copies + 512, copies + 512 + states, copies + 512 + 2 * states)
