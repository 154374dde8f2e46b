"""The staging buffer and semaphores of reductions that several blocks share.

Where few outputs are reduced from many inputs, CUDA splits each output's inputs over
thread blocks, which meet in a buffer of global memory. A port of the launch
configuration in aten/src/ATen/native/cuda/Reduce.cuh (`setReduceConfig`, unchanged in
what it computes from 1.9 to 2.14), with the order of dimensions that `TensorIterator`
(aten/src/ATen/TensorIterator.cpp, `reorder_dimensions`, `coalesce_dimensions`) gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.temporary import Inputs, Outputs, Scratch, argument, exact
from ebbtide.vgpu.tensors import TensorMeta

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256

# Operation -> position of the dimensions among its arguments.
_DIMS_AT = {
    "sum": 1,
    "nansum": 1,
    "mean": 1,
    "amax": 1,
    "amin": 1,
    "max": 1,
    "min": 1,
    "argmax": 1,
    "argmin": 1,
    "prod": 1,
    "any": 1,
    "all": 1,
    "var": 1,
    "std": 1,
    "var_mean": 1,
    "std_mean": 1,
    "norm": 2,
    "linalg_vector_norm": 2,
}
_WITH_INDEX = frozenset({"max", "min", "argmax", "argmin"})
_MOMENTS = frozenset({"var", "std", "var_mean", "std_mean"})
_SAME_TYPE = frozenset({"amax", "amin"})
_TRUTH = frozenset({"any", "all"})

NAMES = frozenset(_DIMS_AT)


class Loop(NamedTuple):
    """A reduction as TensorIterator lays it out, the fastest dimension first."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    reduced: int

    @property
    def outputs(self) -> int:
        """Number of results."""
        return math.prod(self.sizes[self.reduced :])

    @property
    def inputs(self) -> int:
        """Number of values that each result is made of."""
        return math.prod(self.sizes[: self.reduced])


def scratch(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """The buffer and the semaphores of a reduction; nothing if one block does each result."""
    tensor = inputs[0]
    dims = _dims(name, inputs)
    if not isinstance(tensor, TensorMeta) or dims is None or not tensor.numel:
        return ()
    vector = 2 if name in _MOMENTS else 4
    staging, semaphores = global_reduce(
        tensor, dims, accumulated_bytes(name, tensor), ctx, vector=vector
    )
    return exact("multi-block reduction", len(outputs), staging, semaphores)


def _dims(name: str, inputs: Inputs) -> tuple[int, ...] | None:
    rank = len(inputs[0].shape) if isinstance(inputs[0], TensorMeta) else 0
    given = argument(inputs, _DIMS_AT[name])
    if given is None or isinstance(given, bool) or given in ((), []):
        return tuple(range(rank))
    if isinstance(given, TensorMeta):
        return None  # the element-wise maximum of two tensors
    chosen = given if isinstance(given, tuple | list) else (given,)
    if not all(isinstance(d, int) and -rank <= d < rank for d in chosen):
        return tuple(range(rank))
    return tuple(d % rank for d in chosen)


def accumulated_bytes(name: str, tensor: TensorMeta) -> int:
    """Size of what a thread carries for one result (`arg_t` in Reduce.cuh).

    Welford's moments are mean, squares, count and count again; an index is carried as a
    pair with its value (aten/src/ATen/native/SharedReduceOps.h).
    """
    wide = tensor.dtype in {"float64", "complex128"}
    if name in _MOMENTS:
        return 32 if wide else 16
    if name in _WITH_INDEX:
        return 16
    if name in _TRUTH:
        return 1
    if name in _SAME_TYPE:
        return tensor.itemsize
    return 8 if wide or "int" in tensor.dtype or tensor.dtype == "bool" else 4


def lay_out(tensor: TensorMeta, dims: Sequence[int]) -> Loop:
    """The loop over `tensor`, reduced dimensions first, each part in order of its strides."""
    part: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for dim in reversed(range(len(tensor.shape))):
        if tensor.shape[dim] != 1:
            part[dim in dims].append((tensor.shape[dim], tensor.strides[dim]))
    merged = {key: _coalesce(sorted(value, key=lambda d: d[1])) for key, value in part.items()}
    loop = merged[True] + merged[False]
    return Loop(
        tuple(size for size, _ in loop), tuple(stride for _, stride in loop), len(merged[True])
    )


def _coalesce(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return merged


def global_reduce(
    tensor: TensorMeta,
    dims: Sequence[int],
    element_bytes: int,
    ctx: KernelContext,
    *,
    vector: int = 4,
) -> tuple[int, int]:
    """Bytes of the staging buffer and of the semaphores; both 0 if blocks do not share.

    Args:
        tensor: what is reduced.
        dims: over which dimensions, none of them negative.
        element_bytes: size of what a thread carries for one result.
        ctx: the multiprocessors decide how many blocks there are to share the work.
        vector: values that one load takes (`input_vec_size`).
    """
    loop = lay_out(tensor, dims)
    outputs, inputs = loop.outputs, loop.inputs
    rows_first = loop.reduced == len(loop.sizes) or (
        loop.reduced > 0 and loop.strides[0] < loop.strides[loop.reduced]
    )
    dim0, dim1 = (inputs, outputs) if rows_first else (outputs, inputs)
    fastest = 0 if rows_first else loop.reduced
    output_vector = 1
    if loop.sizes and loop.strides[fastest] == 1:
        if rows_first and dim0 > 128 and len(loop.sizes) == 1:
            dim0 //= vector
        elif not rows_first:
            output_vector = _output_vector(loop)
            dim0 //= output_vector
    width, height = _block(dim0, dim1, _MAX_THREADS // output_vector)
    step_in, step_out = 1, 1
    across_x = rows_first or not loop.sizes
    if across_x:
        step_in *= width
    else:
        step_out *= width
    values = -(-inputs // step_in)
    across_y = values >= height * _MIN_VALUES or values >= _MAX_VALUES
    if across_y:
        step_in *= height
    else:
        step_out *= height
    values = -(-inputs // step_in)
    blocks = -(-(outputs // output_vector) // step_out)
    target = ctx.sm_count * (ctx.threads_per_sm // (width * height))
    if not (across_y and values >= _MAX_VALUES and blocks <= target):
        return 0, 0
    share = max(min(-(-target // blocks), -(-values // _MIN_VALUES)), -(-values // _MAX_VALUES))
    if share <= 1:
        return 0, 0
    staging = element_bytes * outputs * share
    if not across_x:
        staging *= width * output_vector
    return staging, 4 * blocks


def _output_vector(loop: Loop) -> int:
    """`get_output_vec_size`: neighbouring results that one thread computes."""
    vector = 4
    for position in range(len(loop.sizes)):
        figure = loop.sizes[position] if position == loop.reduced else loop.strides[position]
        while figure % vector:
            vector //= 2
    return vector


def _block(dim0: int, dim1: int, most: int) -> tuple[int, int]:
    """`set_block_dimension`: width and height of a block of threads."""
    wide, high = (min(_last_power_of_two(d), most) for d in (dim0, dim1))
    width = min(wide, _WARP)
    height = min(high, most // width)
    return min(wide, most // height), height


def _last_power_of_two(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)
