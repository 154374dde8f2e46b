"""Workspaces of NVIDIA's libraries that ask for their own size: cuFFT, cuSOLVER, cuDNN's RNN.

None of them is documented to the byte, so each is a span with its reasoning.
"""

from __future__ import annotations

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.temporary import (
    Inputs,
    Outputs,
    Scratch,
    copy_bytes,
    rounded,
    span,
    tensors_of,
)

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Matrices of a cell by cuDNN's mode: plain with relu or tanh, LSTM, GRU."""


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


def rnn(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`_cudnn_rnn` and its backward: the pre-activations of a layer, forward or backward.

    RNN.cpp asks cuDNN for the workspace. Its standard algorithm multiplies the inputs of
    all steps at once, so the gates of one layer (both directions) are written out before
    the recurrence; other algorithms need less, backward the gradients of gates as well.
    The reserve is an output.
    """
    tensors = tensors_of(inputs)
    sequence = tensors[0]
    if len(sequence.shape) != 3:
        return ()
    mode, hidden, both = _rnn_shape(inputs)
    steps = sequence.shape[0] * sequence.shape[1]
    gates = steps * _GATES.get(mode, 4) * hidden * (2 if both else 1) * sequence.itemsize
    copies = rounded(*copy_bytes(sequence))
    likely = copies + (2 * gates if "backward" in name else gates)
    return span("cuDNN RNN workspace", len(outputs), copies, likely, copies + 4 * gates)


def _rnn_shape(inputs: Inputs) -> tuple[int, int, bool]:
    """Mode, hidden size and whether both directions run, from the integers and switches."""
    numbers = [a for a in inputs if isinstance(a, int) and not isinstance(a, bool)]
    switches = [a for a in inputs if isinstance(a, bool)]
    # weight_stride0, mode, hidden_size, proj_size, num_layers; batch_first, train, bidirectional
    mode, hidden = (numbers[1], numbers[2]) if len(numbers) > 2 else (2, 0)
    return mode, hidden, len(switches) > 2 and switches[2]
