"""Which kernel a convolution takes, and its temporaries.

Sources: aten/src/ATen/native/Convolution.cpp (`ConvParams::use_cudnn`,
`use_cudnn_depthwise`, `_select_conv_backend`), native/cudnn/ConvShared.cpp and
Conv_v8.cpp, of 2.0 to 2.14.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ebbtide.vgpu.kernels.blas import is_contiguous
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.cudnn import Direction, conv_workspace
from ebbtide.vgpu.kernels.reductions import global_reduce
from ebbtide.vgpu.kernels.temporary import (
    Inputs,
    Outputs,
    Scratch,
    accumulator_bytes,
    argument,
    exact,
    rounded,
)
from ebbtide.vgpu.tensors import TensorMeta

ConvBackend = Literal["cudnn", "depthwise", "slow", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One convolution: shapes as PyTorch has them, one entry of each list per dimension."""

    x: TensorMeta
    w: TensorMeta
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    groups: int = 1

    @property
    def channels_last(self) -> bool:
        """Whether cuDNN gets channels last (`cudnn_conv_suggest_memory_format`)."""
        return self.x.dtype != "float64" and any(
            _is_channels_last(tensor) for tensor in (self.x, self.w)
        )


def _is_channels_last(tensor: TensorMeta) -> bool:
    """`is_channels_last_strides_2d_s4` in c10/core/MemoryFormat.h, and its 3-D twin.

    Unlike contiguity it looks at the strides of dimensions of one element too, which is
    how a 1x1 weight tells its layout.
    """
    rank = len(tensor.shape)
    if rank not in (4, 5) or tensor.strides[1] == 0 or 0 in tensor.shape:
        return False
    least = 0
    for dim in (1, *range(rank - 1, 1, -1), 0):
        stride = tensor.strides[dim]
        if stride < least or (dim == 0 and least == tensor.strides[1]):
            return False
        least = stride * max(tensor.shape[dim], 1)
    return True


def backend(conv: Convolution, ctx: KernelContext) -> ConvBackend:
    """The kernel that `convolution` takes on CUDA.

    Depthwise convolutions run on PyTorch's own kernel unless cuDNN is known to be faster:
    always for channels last, and in half precision for some sizes
    (`check_cudnn_depthwise_workload_with_filter`).
    """
    if 0 in conv.x.shape or 0 in conv.w.shape:
        return "empty"
    cudnn = ctx.cudnn_enabled and conv.x.dtype in {"float16", "bfloat16", "float32", "float64"}
    depthwise = (
        not conv.transposed
        and conv.groups > 1
        and len(conv.x.shape) in (4, 5)
        and conv.x.shape[1] == conv.groups
        and conv.w.shape[0] % conv.x.shape[1] == 0
    )
    if depthwise:
        return "cudnn" if cudnn and _cudnn_is_faster(conv, ctx) else "depthwise"
    return "cudnn" if cudnn else "slow"


def _cudnn_is_faster(conv: Convolution, ctx: KernelContext) -> bool:
    """`use_cudnn_depthwise`: channels last, or half precision with a suitable workload."""
    if conv.channels_last:
        return True
    x, w = conv.x, conv.w
    if x.dtype != "float16" or w.dtype != "float16" or len(x.shape) != 4:
        return False
    if any(d != 1 for d in conv.dilation) or x.shape[1] < 32:
        return False
    if conv.stride[0] != conv.stride[1] and x.shape[2] != 1:
        return False
    return _workload_suits(conv)


def _workload_suits(conv: Convolution) -> bool:
    """`check_cudnn_depthwise_workload_with_filter`, the version for cuDNN 8.2 and newer."""
    batch, channels, height, width = conv.x.shape
    stride, size = conv.stride[1], conv.w.shape[3]
    if height == 1 and stride == 1:
        return True
    if conv.w.shape[2] != size or size not in (1, 3, 5) or width < 7:
        return False
    if stride != 2:
        return stride == 1
    if batch == 1:
        return size != 1 or width <= 28
    if size == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def _of(x: TensorMeta, w: TensorMeta, inputs: Inputs, first: int) -> Convolution:
    """The convolution whose stride is argument `first`."""
    dims = len(x.shape) - 2

    def spread(value: object, default: int) -> tuple[int, ...]:
        items = tuple(value) if isinstance(value, tuple | list) else (value,)
        numbers = [n for n in items if isinstance(n, int)]
        return tuple((numbers * dims)[:dims]) if numbers else (default,) * dims

    return Convolution(
        x=x,
        w=w,
        stride=spread(argument(inputs, first), 1),
        padding=spread(argument(inputs, first + 1), 0),
        dilation=spread(argument(inputs, first + 2), 1),
        transposed=bool(argument(inputs, first + 3, False)),
        groups=int(argument(inputs, first + 5, 1) or 1),
    )


def forward(name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext) -> tuple[Scratch, ...]:
    """`convolution(input, weight, bias, stride, padding, dilation, transposed, ...)`."""
    x, w = inputs[0], inputs[1]
    if not isinstance(x, TensorMeta) or not isinstance(w, TensorMeta) or not outputs:
        return ()
    conv = _of(x, w, inputs, 3 if name != "cudnn_convolution" else 2)
    chosen = backend(conv, ctx)
    copies = _layout_copies(conv, x, w)
    if chosen in {"depthwise", "empty"}:
        return exact("contiguous copy", 0, *copies)
    if chosen == "slow":
        return _slow(conv, outputs[0], len(outputs))
    direction: Direction = "dgrad" if conv.transposed else "fwd"
    near, far = (outputs[0], x) if conv.transposed else (x, outputs[0])
    return _with_workspace(conv, direction, near, far, copies, 1, ctx)


def backward(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """`convolution_backward(grad_output, input, weight, bias_sizes, stride, ...)`.

    The gradient of the input, then that of the weight, each with its own workspace, then
    the bias' by a reduction.
    """
    grad, x, w = inputs[0], inputs[1], inputs[2]
    if not all(isinstance(t, TensorMeta) for t in (grad, x, w)):
        return ()
    conv = _of(x, w, inputs, 4)
    mask = argument(inputs, 10, (True, True, True))
    mask = tuple(bool(wanted) for wanted in mask) if isinstance(mask, tuple | list) else (True,) * 3
    chosen = backend(conv, ctx)
    copies = _layout_copies(conv, grad, w if mask[0] else x)
    near, far = (grad, x) if conv.transposed else (x, grad)
    stages: tuple[Scratch, ...] = ()
    if chosen == "slow":
        return _slow(conv, grad, len(outputs))
    if chosen == "cudnn":
        if mask[0]:
            direction: Direction = "fwd" if conv.transposed else "dgrad"
            stages += _with_workspace(conv, direction, near, far, copies, 1, ctx)
        if mask[1]:
            copies = _layout_copies(conv, grad, x)
            stages += _with_workspace(conv, "wgrad", near, far, copies, 2, ctx)
    else:
        stages += exact("contiguous copy", 0, *copies)
    if len(mask) > 2 and mask[2]:
        others = tuple(d for d in range(len(grad.shape)) if d != 1)
        staging = global_reduce(grad, others, accumulator_bytes(grad.dtype), ctx)
        stages += exact("multi-block reduction", 3, *staging)
    return stages


def _layout_copies(conv: Convolution, *tensors: TensorMeta) -> tuple[int, ...]:
    """Copies into the layout that cuDNN is given: `contiguous(memory_format)`."""
    fits = _is_channels_last if conv.channels_last else is_contiguous
    return tuple(t.nbytes for t in tensors if not fits(t) and not is_both(t))


def is_both(tensor: TensorMeta) -> bool:
    """Whether a tensor is contiguous whatever the layout: one channel, or no area."""
    return is_contiguous(tensor) and (tensor.shape[1] == 1 or math.prod(tensor.shape[2:]) == 1)


def _with_workspace(
    conv: Convolution,
    direction: Direction,
    near: TensorMeta,
    far: TensorMeta,
    copies: tuple[int, ...],
    after_outputs: int,
    ctx: KernelContext,
) -> tuple[Scratch, ...]:
    """One call of cuDNN; `near` has the input's shape, `far` the output's."""
    low, likely, high, label = conv_workspace(
        direction,
        near,
        conv.w,
        far,
        conv.groups,
        conv.stride,
        conv.padding,
        conv.dilation,
        ctx,
        channels_last=conv.channels_last,
    )
    held = rounded(*copies)
    if not high + held:
        return ()
    return (
        Scratch(
            low=rounded(low) + held,
            likely=rounded(likely) + held,
            high=rounded(high) + held,
            after_outputs=after_outputs,
            label=label,
            # `try_configs` in Conv_v8.cpp catches the allocator's error and goes on to the
            # next engine; cuDNN's list ends with ones that need no workspace.
            fallback=held,
        ),
    )


def _slow(conv: Convolution, out: TensorMeta, after_outputs: int) -> tuple[Scratch, ...]:
    """`slow_conv2d` and kin unfold one sample at a time into columns (ConvolutionMM2d.cu)."""
    area = math.prod(out.shape[2:])
    patch = conv.x.shape[1] * math.prod(conv.w.shape[2:])
    return exact("unfolded columns", after_outputs, area * patch * conv.x.itemsize)
