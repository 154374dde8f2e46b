"""The workspaces that cuBLAS and cuBLASLt hold inside PyTorch's caching allocator.

A workspace belongs to a pair of handle and stream. Every host thread has its own
handle, so a training step pays twice: once for the main thread, once for autograd's.

Sources: aten/src/ATen/cuda/CublasHandlePool.cpp and CUDABlas.cpp, and
aten/src/ATen/native/cuda/Blas.cpp, of the versions named beside each rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ebbtide.units import KiB, MiB
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

Library = Literal["blas", "lt"]

# ":4096:2:16:8": two pools of 4,096 KiB and eight of 16 KiB (PR 91564, in 2.0).
_DEFAULT_BYTES = 2 * 4096 * KiB + 8 * 16 * KiB
_LARGE_BYTES = 32 * MiB
# Before PR 91564 the number of pools was ignored: one pool of 4,096 KiB.
_BYTES_UNTIL_1_13 = 4096 * KiB
_LT_DEFAULT_BYTES = 1024 * KiB  # PR 73439 (1.12), "default size in KiB according to #73328"

_POOL = re.compile(r":([0-9]+):([0-9]+)")

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_BLAS_DTYPES = _FLOATS | {"complex64", "complex128"}
# Position of the two matrices among the tensor arguments of each operation.
_GEMM = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "_addmm_activation": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "mv": (0, 1),
    "addmv": (1, 2),
    "dot": (0, 1),
    "vdot": (0, 1),
}
# Only cuBLASLt has these: 8-bit products (aten/src/ATen/native/cuda/ScaledBlas.cpp, Blas.cpp).
_LT_ONLY = frozenset({"_scaled_mm", "_int_mm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A block of the caching allocator that a library of matrix products works in.

    `held` says for how long: until the process clears it, once for each handle
    and stream (``"handle"``), or only while the operation is issued (``"call"``).
    """

    library: Library
    nbytes: int
    held: Literal["handle", "call"]


def gemm_workspace_bytes(ctx: KernelContext) -> int:
    """Bytes of cuBLAS' workspace for one handle and stream; 0 if PyTorch sets none.

    2.0 and newer: 8,519,680 B, on Hopper 32 MiB (CublasHandlePool.cpp,
    `parseChosenWorkspaceSize`, PR 91564); since 2.12 on Blackwell too (PR 175344,
    merged 2026-02). 1.12 and 1.13: 4 MiB. Older: cuBLAS uses memory of its own.
    """
    if ctx.torch_version < (1, 12):
        return 0
    configured = _configured_bytes(ctx)
    if configured is not None:
        return configured
    if ctx.torch_version < (2, 0):
        return _BYTES_UNTIL_1_13
    large = {(9, 0)} if ctx.torch_version < (2, 12) else set[tuple[int, int]]()
    if ctx.capability in large or (ctx.torch_version >= (2, 12) and 9 <= ctx.capability[0] <= 12):
        return _LARGE_BYTES
    return _DEFAULT_BYTES


def _configured_bytes(ctx: KernelContext) -> int | None:
    """What CUBLAS_WORKSPACE_CONFIG asks for; None where it is unset or unreadable."""
    pools = _POOL.findall(ctx.environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if not pools:
        return None  # PyTorch warns and takes its default
    if ctx.torch_version < (2, 0):
        return int(pools[0][0]) * KiB  # the count was ignored before PR 91564
    return sum(int(size) * KiB * int(count) for size, count in pools)


def lt_workspace_bytes(ctx: KernelContext) -> int:
    """Bytes of the workspace that one cuBLASLt product gets.

    1 MiB since 1.12 (PR 73439), changed by CUBLASLT_WORKSPACE_SIZE in KiB since 2.1
    (PR 101145). With one workspace for both libraries (`lt_is_unified`) it lies inside
    cuBLAS' own, so its size does not add to the memory.
    """
    if ctx.torch_version < (1, 12):
        return 0
    text = ctx.environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    size = _LT_DEFAULT_BYTES
    if ctx.torch_version >= (2, 1) and (number := re.match(r"\s*\d+", text)):
        size = int(number[0]) * KiB
    return min(size, gemm_workspace_bytes(ctx)) if lt_is_unified(ctx) else size


def lt_is_unified(ctx: KernelContext) -> bool:
    """Whether cuBLASLt works in cuBLAS' workspace instead of in one of its own.

    TORCH_CUBLASLT_UNIFIED_WORKSPACE asks for it since 2.8 (PR 151163). It became the
    default with PR 175879 (merged 2026-03, in 2.12); PR 168175 before it changed only
    the size that was reported.
    """
    if ctx.torch_version < (2, 8) or not _keeps_workspaces(ctx):
        return False
    wanted = ctx.flag("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    return wanted is True or (wanted is None and ctx.torch_version >= (2, 12))


def _keeps_workspaces(ctx: KernelContext) -> bool:
    """Whether a workspace stays with its handle, as it did until PR 194311 (2.15)."""
    if ctx.torch_version < (2, 15):
        return True
    return ctx.flag("TORCH_CUBLAS_WORKSPACE_CACHE") is True


def which_gemm(
    op_name: str,
    inputs: Sequence[TensorMeta | float | None],
    ctx: KernelContext,
    *,
    beta: float = 1.0,
) -> Library | None:
    """The library that carries out `op_name`; None if no workspace of either is touched.

    Args:
        op_name: ATen's name without the overload: ``"addmm"``, ``"bmm"``.
        inputs: the arguments in ATen's order; what is no tensor is skipped.
        ctx: device, versions and switches.
        beta: the factor of `addmm`'s first argument.
    """
    tensors = [value for value in inputs if isinstance(value, TensorMeta)]
    name = op_name.removesuffix("_") if not op_name.endswith("__") else op_name
    if name in _LT_ONLY:
        return "lt"
    if name not in _GEMM or len(tensors) <= _GEMM[name][1]:
        return None
    left, right = (tensors[position] for position in _GEMM[name])
    if left.dtype not in _BLAS_DTYPES or left.numel == 0 or right.numel == 0:
        return None
    if name not in {"addmm", "_addmm_activation"} or op_name == "addmm_":
        return "blas"
    fused = name == "_addmm_activation"
    return "lt" if _addmm_uses_lt(tensors[0], left, right, ctx, beta, fused) else "blas"


def _addmm_uses_lt(
    bias: TensorMeta,
    left: TensorMeta,
    right: TensorMeta,
    ctx: KernelContext,
    beta: float,
    fused_activation: bool,
) -> bool:
    """Whether `addmm` adds its bias inside cuBLASLt.

    Blas.cpp, `addmm_out_cuda_impl`: since 1.12 (PR 72148) for a one-dimensional,
    contiguous bias with beta 1 and CUDA 11.4 or newer; since 2.10 also for (1, n) biases
    (PR 166307) and, before an activation, for two-dimensional ones (PR 165548).
    """
    if ctx.torch_version < (1, 12) or ctx.cuda_version < (11, 4):
        return False
    if ctx.environment.get("DISABLE_ADDMM_CUDA_LT") == "1" or beta != 1.0:
        return False
    if left.dtype not in _FLOATS or min(right.shape) <= 1:
        return False
    rows, columns = left.shape[0], right.shape[1]
    modern = ctx.torch_version >= (2, 10)
    if modern and min(left.shape) <= 1:
        return False
    if ctx.cuda_version < (12, 1) and not _old_cuda_limits(left, right):
        return False
    vector = len(bias.shape) == 1 or (modern and sum(n != 1 for n in bias.shape) == 1)
    if vector and bias.shape[-1] == columns and is_contiguous(bias):
        return True
    expandable = len(bias.shape) == 2 and all(
        have in (1, want) for have, want in zip(bias.shape, (rows, columns), strict=True)
    )
    return modern and fused_activation and expandable


def _old_cuda_limits(left: TensorMeta, right: TensorMeta) -> bool:
    """Blas.cpp's further conditions where CUDA is older than 12.1."""
    if max(*left.shape, *right.shape) >= 65535 * 32:
        return False
    if left.dtype not in {"float16", "bfloat16"}:
        return True
    return all(is_contiguous(m) or is_contiguous(transposed(m)) for m in (left, right))


def workspaces(
    op_name: str,
    inputs: Sequence[TensorMeta | float | None],
    ctx: KernelContext,
    *,
    beta: float = 1.0,
) -> tuple[Workspace, ...]:
    """The workspaces that `op_name` needs on its thread's handle and its stream.

    A cuBLASLt handle *is* the thread's cuBLAS handle (CublasHandlePool.cpp), so the
    first product of either library brings cuBLAS' workspace too, until 2.14.
    """
    library = which_gemm(op_name, inputs, ctx, beta=beta)
    if library is None:
        return ()
    kept = _keeps_workspaces(ctx)
    blas = Workspace(
        library="blas", nbytes=gemm_workspace_bytes(ctx), held="handle" if kept else "call"
    )
    # One block for each handle and stream since PR 156495 (2.9), before it one for each call.
    lt = Workspace(
        library="lt",
        nbytes=lt_workspace_bytes(ctx),
        held="handle" if ctx.torch_version >= (2, 9) else "call",
    )
    if library == "blas":
        found = [blas]
    elif not kept:
        found = [Workspace(library="lt", nbytes=lt.nbytes, held="call")]
    elif lt_is_unified(ctx):
        found = [blas]
    else:
        found = [blas, lt]
    return tuple(workspace for workspace in found if workspace.nbytes)


def is_contiguous(tensor: TensorMeta) -> bool:
    """`torch.Tensor.is_contiguous()`: dimensions of one element do not count."""
    if 0 in tensor.shape:
        return True
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def transposed(matrix: TensorMeta) -> TensorMeta:
    """The matrix with its last two dimensions exchanged."""
    shape, strides = matrix.shape, matrix.strides
    return matrix._replace(
        shape=(*shape[:-2], shape[-1], shape[-2]),
        strides=(*strides[:-2], strides[-1], strides[-2]),
    )
