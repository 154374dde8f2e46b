"""Workspaces of libraries that ask for their own size: cuFFT and cuSOLVER.

Neither is documented to the byte, so each is a span with its reasoning.
"""

from __future__ import annotations

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.temporary import (
    Inputs,
    Outputs,
    Scratch,
    span,
    tensors_of,
)


def fft(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`_fft_c2c`, `_fft_r2c`, `_fft_c2r`.

    SpectralOps.cpp (`_exec_fft`) gives cuFFT a workspace from the caching allocator and
    clones the input of a transform that would overwrite it. cuFFT's documentation: in the
    best case no work area, otherwise as much as the complex data, for lengths with large
    prime factors several times as much.
    """
    tensor = tensors_of(inputs)[0]
    data = max(tensor.nbytes, *(output.nbytes for output in outputs), 0)
    clone = tensor.nbytes if name == "_fft_c2r" else 0
    small = max(tensor.shape, default=1) <= 4096 and _is_smooth(tensor.shape)
    likely = clone if small else clone + data
    return span("cuFFT work area", len(outputs), clone, likely, clone + 4 * data)


def _is_smooth(shape: tuple[int, ...]) -> bool:
    """Whether every length has only the factors 2, 3, 5 and 7, which cuFFT does at once."""
    for length in shape:
        rest = max(length, 1)
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest != 1:
            return False
    return True


def factorisation(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """Decompositions and solvers: a copy in columns, and cuSOLVER's workspace.

    BatchLinearAlgebraLib.cpp: the matrix is cloned column by column; cuSOLVER's
    workspaces are blocks of columns for LU, QR and Cholesky, and up to three matrices for
    eigenvalues and singular values.
    """
    matrix = tensors_of(inputs)[0]
    spectral = any(part in name for part in ("eig", "svd", "lstsq"))
    likely = 3 * matrix.nbytes if spectral else matrix.nbytes
    return span("cuSOLVER workspace", len(outputs), 0, likely, likely + 3 * matrix.nbytes)
