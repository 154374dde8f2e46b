"""Choices worked out from Convolution.cpp, and the stages of forward and backward."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.convolutions import Convolution, backend
from ebbtide.vgpu.kernels.cudnn import conv_workspace
from ebbtide.vgpu.kernels.reductions import global_reduce
from ebbtide.vgpu.kernels.scratch import Scratch, scratch
from ebbtide.vgpu.kernels.temporary import rounded
from ebbtide.vgpu.tensors import TensorMeta

from .build import meta

CTX = KernelContext(capability=(8, 0), torch_version=(2, 6), sm_count=108)
NO_CUDNN = KernelContext(capability=(8, 0), torch_version=(2, 6), cudnn_enabled=False)


def last(batch: int, channels: int, height: int, width: int, dtype: str = "float32") -> TensorMeta:
    strides = (height * width * channels, 1, width * channels, channels)
    return meta(batch, channels, height, width, dtype=dtype, strides=strides)


def conv(x: TensorMeta, w: TensorMeta, **more: Any) -> Convolution:
    dims = len(x.shape) - 2
    settings = {"stride": (1,) * dims, "padding": (1,) * dims, "dilation": (1,) * dims}
    return Convolution(x=x, w=w, **(settings | more))


def depthwise(
    *shape: int, kernel: int = 3, stride: int = 1, dtype: str = "float16", dilation: int = 1
) -> Convolution:
    channels = shape[1]
    w = meta(channels, 1, kernel, kernel, dtype=dtype)
    return conv(
        meta(*shape, dtype=dtype),
        w,
        stride=(stride, stride),
        dilation=(dilation, dilation),
        groups=channels,
    )


def test_dense_convolutions_take_cudnn() -> None:
    assert backend(conv(meta(2, 8, 16, 16), meta(8, 8, 3, 3)), CTX) == "cudnn"
    assert backend(conv(meta(2, 8, 16, 16), meta(8, 8, 3, 3)), NO_CUDNN) == "slow"
    assert backend(conv(meta(0, 8, 16, 16), meta(8, 8, 3, 3)), CTX) == "empty"


def test_depthwise_in_float32_takes_torchs_own_kernel() -> None:
    assert backend(depthwise(32, 64, 56, 56, dtype="float32"), CTX) == "depthwise"
    assert backend(depthwise(32, 64, 56, 56, dtype="bfloat16"), CTX) == "depthwise"


@pytest.mark.parametrize(
    ("shape", "settings", "chosen"),
    [
        ((32, 64, 56, 56), {}, "cudnn"),
        ((32, 64, 56, 56), {"kernel": 7}, "depthwise"),
        ((32, 64, 6, 6), {}, "depthwise"),
        ((32, 16, 56, 56), {}, "depthwise"),
        ((32, 64, 56, 56), {"dilation": 2}, "depthwise"),
        ((32, 64, 56, 56), {"stride": 3}, "depthwise"),
        ((32, 64, 56, 56), {"stride": 2}, "depthwise"),
        ((32, 256, 28, 28), {"stride": 2}, "cudnn"),
        ((32, 512, 14, 14), {"stride": 2}, "cudnn"),
        ((1, 64, 56, 56), {"stride": 2}, "cudnn"),
        ((1, 64, 56, 56), {"stride": 2, "kernel": 1}, "depthwise"),
        ((1, 64, 28, 28), {"stride": 2, "kernel": 1}, "cudnn"),
        ((16, 128, 7, 7), {"stride": 2, "kernel": 1}, "cudnn"),
        ((32, 128, 7, 7), {"stride": 2, "kernel": 1}, "depthwise"),
    ],
)
def test_depthwise_in_float16_by_workload(
    shape: tuple[int, ...], settings: dict[str, int], chosen: str
) -> None:
    assert backend(depthwise(*shape, **settings), CTX) == chosen


def test_depthwise_along_a_line() -> None:
    """One-dimensional ones come with a height of one."""
    line = conv(
        meta(8, 64, 1, 100, dtype="float16"),
        meta(64, 1, 1, 9, dtype="float16"),
        groups=64,
    )
    assert backend(line, CTX) == "cudnn"


def test_depthwise_in_channels_last_takes_cudnn() -> None:
    w = meta(64, 1, 3, 3)
    assert backend(conv(last(32, 64, 56, 56), w, groups=64), CTX) == "cudnn"


def test_grouped_but_not_depthwise() -> None:
    assert backend(conv(meta(8, 64, 28, 28), meta(64, 2, 3, 3), groups=32), CTX) == "cudnn"


def test_layouts_are_told_by_strides() -> None:
    assert conv(last(2, 8, 4, 4), meta(8, 8, 3, 3)).channels_last
    assert not conv(meta(2, 8, 4, 4), meta(8, 8, 3, 3)).channels_last
    # A 1x1 weight in channels last has the same values in the same places, but says so.
    pointwise = meta(16, 8, 1, 1, strides=(8, 1, 8, 8))
    assert conv(meta(2, 8, 4, 4), pointwise).channels_last
    assert not conv(meta(2, 8, 4, 4), meta(16, 8, 1, 1)).channels_last
    doubles = last(2, 8, 4, 4, dtype="float64")
    assert not conv(doubles, meta(8, 8, 3, 3, dtype="float64")).channels_last


def sizes(stages: tuple[Scratch, ...]) -> list[tuple[int, int]]:
    return [(stage.after_outputs, stage.likely) for stage in stages]


X, W, Y = meta(32, 64, 56, 56), meta(128, 64, 3, 3), meta(32, 128, 56, 56)
SETTINGS = ((1, 1), (1, 1), (1, 1))


def answer(direction: Any, x: TensorMeta = X, w: TensorMeta = W, y: TensorMeta = Y) -> int:
    return rounded(conv_workspace(direction, x, w, y, 1, *SETTINGS, CTX)[1])


def test_forward_takes_one_workspace_after_its_output() -> None:
    arguments = (X, W, None, *SETTINGS, False, (0, 0), 1)
    found = scratch("convolution", arguments, (Y,), CTX)
    assert sizes(found) == [(1, answer("fwd"))]


def test_backward_takes_one_for_each_gradient() -> None:
    arguments = (Y, X, W, (128,), *SETTINGS, False, (0, 0), 1, (True, True, False))
    found = scratch("convolution_backward", arguments, (X, W, meta(128)), CTX)
    assert sizes(found) == [(1, answer("dgrad")), (2, answer("wgrad"))]


def test_the_bias_gradient_is_a_reduction() -> None:
    """Few channels of many pixels: several blocks share each sum."""
    x, w, grad = meta(64, 3, 128, 128), meta(4, 3, 3, 3), meta(64, 4, 128, 128)
    arguments = (grad, x, w, (4,), *SETTINGS, False, (0, 0), 1, (False, False, True))
    staging = global_reduce(grad, (0, 2, 3), 4, CTX)
    assert min(staging) > 0
    found = scratch("convolution_backward", arguments, (meta(4),), CTX)
    assert sizes(found) == [(3, rounded(*staging))]


def test_backward_of_the_first_layer_has_no_input_gradient() -> None:
    arguments = (Y, X, W, None, *SETTINGS, False, (0, 0), 1, (False, True, False))
    found = scratch("convolution_backward", arguments, (W,), CTX)
    # The missing gradient counts: its place comes first.
    assert sizes(found) == [(2, answer("wgrad"))]


def test_a_transposed_convolution_is_a_gradient() -> None:
    """Its forward is the input gradient of the convolution with the same weight."""
    w = meta(64, 128, 3, 3)
    arguments = (X, w, None, *SETTINGS, True, (0, 0), 1)
    found = scratch("convolution", arguments, (Y,), CTX)
    assert sizes(found) == [(1, answer("dgrad", x=Y, w=w, y=X))]


def test_a_gradient_in_another_layout_is_copied_first() -> None:
    arguments = (last(32, 128, 56, 56), X, W, None, *SETTINGS, False, (0, 0), 1, (True, False))
    (stage,) = scratch("convolution_backward", arguments, (X,), CTX)
    assert stage.likely == answer("dgrad") + rounded(Y.nbytes)


def test_depthwise_has_no_workspace() -> None:
    x, w = meta(32, 64, 56, 56), meta(64, 1, 3, 3)
    arguments = (x, w, None, *SETTINGS, False, (0, 0), 64)
    assert scratch("convolution", arguments, (x,), CTX) == ()
    back = (x, x, w, None, *SETTINGS, False, (0, 0), 64, (True, True, False))
    assert scratch("convolution_backward", back, (x, w), CTX) == ()


def test_without_cudnn_patches_are_unfolded() -> None:
    arguments = (X, W, None, *SETTINGS, False, (0, 0), 1)
    (stage,) = scratch("convolution", arguments, (Y,), NO_CUDNN)
    assert stage.likely == 64 * 9 * 56 * 56 * 4
    back = (Y, X, W, None, *SETTINGS, False, (0, 0), 1, (True, True, False))
    assert scratch("convolution_backward", back, (X, W), NO_CUDNN)[0].likely == stage.likely


def test_one_number_stands_for_every_dimension() -> None:
    spread = scratch("convolution", (X, W, None, 1, 1, 1, False, 0, 1), (Y,), CTX)
    given = scratch("convolution", (X, W, None, *SETTINGS, False, (0, 0), 1), (Y,), CTX)
    assert spread == given


def test_an_empty_input() -> None:
    empty = meta(0, 64, 56, 56)
    arguments = (empty, W, None, *SETTINGS, False, (0, 0), 1)
    assert scratch("convolution", arguments, (meta(0, 128, 56, 56),), CTX) == ()
