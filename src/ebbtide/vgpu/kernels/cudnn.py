"""The workspaces of cuDNN's convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

Direction = Literal["fwd", "dgrad", "wgrad"]


def conv_workspace(
    direction: Direction,
    x: TensorMeta,
    w: TensorMeta,
    y: TensorMeta,
    groups: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ctx: KernelContext,
    *,
    channels_last: bool = False,
) -> tuple[int, int, int, str]:
    """Low, likely and high bytes of the workspace of one convolution, and its label."""
    if channels_last or ctx.sm < 80 or groups > 1 or x.shape[1] < 8:
        return 0, 0, x.nbytes + y.nbytes, "cuDNN workspace"
    operands = {"fwd": (x, w), "dgrad": (y, w), "wgrad": (x, y)}[direction]
    likely = sum(tensor.nbytes for tensor in operands)
    return 0, likely, x.nbytes + y.nbytes + w.nbytes, "cuDNN workspace"
