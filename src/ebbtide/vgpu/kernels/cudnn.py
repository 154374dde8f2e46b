"""The workspaces of cuDNN's convolutions, from cuDNN's own answers.

cuDNN tells without a GPU which engine it would pick for a convolution and how large its
workspace is, if it is given a device's properties (since cuDNN 9.8, "deviceless"
compilation). `tools/cudnn_workspaces` asked it about the convolutions of some 140 public
networks; the answers were condensed to decision trees. What is solid and what is an
estimate is told in docs/cudnn-workspaces.md.

PyTorch takes the first engine that runs (Conv_v8.cpp, `try_configs`), in cuDNN's order.
Its workspace is a block of the caching allocator, freed right after the launch; if it
does not fit, the next engine is tried.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

Direction = Literal["fwd", "dgrad", "wgrad"]

# What an engine keeps in its workspace, in the order of a leaf's counts.
NOTHING, OPERANDS, EVERYTHING, TWICE = range(4)
# A kind of workspace counts as possible if a tenth of the convolutions of a leaf has it.
_POSSIBLE = 0.1

# Older releases could not be asked. Their grouped convolutions (not depthwise) in TF32 lay
# the operands out anew where 9.8 does not: docs/cudnn-workspaces.md, last part.
_FIRST_ASKED = 90800

# The GPU that was asked about stands for the others of its architecture.
_ASKED = ((120, "12.0"), (100, "10.0"), (90, "9.0"), (89, "8.9"), (86, "8.6"), (80, "8.0"))
_OLDER = ((75, "7.5"), (0, "7.0"))


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
    """Low, likely and high bytes of one convolution's workspace, and a label.

    Args:
        direction: ``"fwd"`` computes `y`, ``"dgrad"`` the gradient of `x`, ``"wgrad"``
            that of `w`. A transposed convolution is a ``"dgrad"`` and the other way round.
        x: input, (batch, channels, *spatial); one to three spatial dimensions.
        w: weight, (output channels, channels of a group, *kernel).
        y: output.
        groups: number of groups.
        stride: for each spatial dimension; `padding` and `dilation` likewise.
        padding: does not change the answer, only the output's size.
        dilation: distance of the kernel's elements.
        ctx: device, versions and switches.
        channels_last: whether cuDNN gets channels-last tensors.
    """
    sizes = [tensor.nbytes for tensor in (x, w, y)]
    everything = sum(sizes)
    label = f"cuDNN workspace ({direction})"
    if not all(sizes):
        return 0, 0, 0, label
    if x.dtype == "float64":
        # No tensor cores, so nothing is laid out anew; FFT engines would need some.
        return 0, 0, everything, label + ", estimate"
    tree = _tree(direction, x.dtype, channels_last, ctx)
    leaf = _descend(tree["tree"], features(x.shape, w.shape, y.shape, groups, stride, dilation))
    operands = {"fwd": x.nbytes + w.nbytes, "dgrad": y.nbytes + w.nbytes}.get(
        direction, x.nbytes + y.nbytes
    )
    scale = tree["scale"]
    kinds = (
        0,
        round(operands * scale[OPERANDS]),
        round(everything * scale[EVERYTHING]),
        round(everything * scale[TWICE]),
    )
    total = sum(leaf)
    possible = [kinds[k] for k in range(4) if leaf[k] >= _POSSIBLE * total]
    likely = kinds[max(range(4), key=lambda k: leaf[k])]
    low, high = min(*possible, likely), max(*possible, likely)
    if len(x.shape) == 5 or ctx.torch_version < (2, 0) or ctx.cudnn_version < 90000:
        return 0, likely, max(high, 2 * everything), label + ", estimate"
    if direction == "fwd" and groups > 1 and not channels_last and _lays_out_groups(x, ctx):
        return 0, kinds[OPERANDS], max(high, kinds[OPERANDS]), label + ", inferred"
    if ctx.cudnn_benchmark:
        # The fastest engine is kept; trying them takes the largest workspace there is.
        return 0, max(likely, everything), max(high, 2 * everything), label + ", benchmark"
    return low, likely, high, label


def _lays_out_groups(x: TensorMeta, ctx: KernelContext) -> bool:
    tf32 = x.dtype == "float32" and ctx.cudnn_allow_tf32 and ctx.sm >= 80
    return tf32 and ctx.cudnn_version < _FIRST_ASKED


def features(
    x: Sequence[int],
    w: Sequence[int],
    y: Sequence[int],
    groups: int,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[float, ...]:
    """What a tree decides by; their names are in the data file.

    One-dimensional convolutions have a height of one, as PyTorch gives them to cuDNN; of
    three-dimensional ones depth and height count as one dimension.
    """
    batch, channels, out_channels = x[0], x[1], w[0]
    height, out_height, kernel_height = (math.prod(shape[2:-1]) for shape in (x, y, w))
    width, out_width, kernel_width = x[-1], y[-1], w[-1]
    area = height * width
    out_area = out_height * out_width
    per_group = channels // groups
    return (
        math.log2(batch),
        channels,
        out_channels,
        groups,
        height,
        out_height,
        kernel_height * kernel_width,
        max(kernel_height, kernel_width),
        stride[-1],
        max(dilation),
        math.log2(batch * channels * area),
        math.log2(batch * out_channels * out_area),
        math.log2(out_channels * per_group * kernel_height * kernel_width),
        math.log2(batch * out_area),
        channels % 4,
        out_channels % 4,
        channels % 8,
        out_channels % 8,
        min(channels, out_channels),
        per_group,
        float(groups == channels and groups > 1),
        out_channels / channels,
        channels * area / (out_channels * out_area),
    )


@cache
def workspace_data() -> dict[str, Any]:
    """The condensed answers: sources, names of the features, and the trees."""
    file = resources.files("ebbtide.vgpu.kernels") / "data" / "cudnn_workspaces.json"
    data: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return data


def _tree(
    direction: Direction, dtype: str, channels_last: bool, ctx: KernelContext
) -> dict[str, Any]:
    arch = next(name for since, name in (*_ASKED, *_OLDER) if ctx.sm >= since)
    release = "9.8" if ctx.cudnn_version < 91100 else "9.20"
    if dtype == "float32":
        kind = "float32" if ctx.cudnn_allow_tf32 or ctx.sm < 80 else "float32-plain"
    else:
        kind = "float16"
    layout = "nhwc" if channels_last else "nchw"
    trees = workspace_data()["trees"]
    # Where a combination was not asked about, the next best one answers: the newer release
    # (Hopper and Blackwell under 9.8), an A100 (float32 in channels last), with TF32.
    for key in (
        f"{release}/{arch}/{kind}/{layout}/{direction}",
        f"9.20/{arch}/{kind}/{layout}/{direction}",
        f"{release}/8.0/{kind}/{layout}/{direction}",
        f"9.20/{arch}/float32/nchw/{direction}",
    ):
        if key in trees:
            tree: dict[str, Any] = trees[key]
            return tree
    raise KeyError(f"cudnn_workspaces.json: no tree for {key}")


def _descend(node: Any, values: tuple[float, ...]) -> tuple[int, int, int, int]:
    """The leaf of a tree: how many of its convolutions had each kind of workspace."""
    while isinstance(node[-1], list):
        feature, threshold, below, above = node
        node = below if values[feature] <= threshold else above
    nothing, operands, everything, twice = node
    return nothing, operands, everything, twice
