"""Copies that matrix products make of matrices cuBLAS cannot read in place.

Source: aten/src/ATen/native/cuda/Blas.cpp, `prepare_matrix_for_cublas` and
`prepare_batch_matrix_for_cublas` (2.0 to 2.14), and GroupMM.cu.
"""

from __future__ import annotations

import math

from ebbtide.vgpu.kernels.blas import is_contiguous
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.temporary import Inputs, Outputs, Scratch, exact, span, tensors_of
from ebbtide.vgpu.tensors import TensorMeta


def needs_copy(matrix: TensorMeta) -> bool:
    """Whether neither the rows nor the columns of a matrix (or of a batch) are dense."""
    if len(matrix.shape) < 2 or 0 in matrix.shape:
        return False
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.strides[-2:]
    if len(matrix.shape) == 2 and is_dense(matrix):
        return False
    by_columns = down == 1 and across >= max(1, rows)
    by_rows = across == 1 and down >= max(1, columns)
    if by_columns or by_rows:
        return False
    return not (len(matrix.shape) == 3 and is_contiguous(matrix) and down and across)


def is_dense(tensor: TensorMeta) -> bool:
    """`is_non_overlapping_and_dense`: contiguous in some order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def gemm(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`mm`, `addmm`, `bmm`, `baddbmm`: the copies are made after the output is there."""
    matrices = tensors_of(inputs)[-2:]
    return exact("contiguous copy", len(outputs), *(m.nbytes for m in matrices if needs_copy(m)))


def grouped_mm(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`_grouped_mm`: CUTLASS' arguments for each group and a workspace of its own.

    GroupMM.cu: 64 kB of pointers and problem sizes or so, and what CUTLASS asks for: its
    tensor maps for each multiprocessor.
    """
    groups = math.prod(tensors_of(inputs)[-1].shape) if len(tensors_of(inputs)) > 2 else 1
    arguments = 1024 * groups
    workspace = ctx.sm_count * 1024
    return span("CUTLASS workspace", len(outputs), 0, arguments + workspace, 8 * workspace)
