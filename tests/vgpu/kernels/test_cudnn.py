"""Workspaces against cuDNN's own answers and against a real run's allocations.

The answers are those of cuDNN 9.8.0 for an RTX 3060 and of 9.20.0 for an A100, asked by
tools/cudnn_workspaces; the real run is HolisticTraceAnalysis' ResNet-50 (batch 32, 224
pixels, float32; @ f4d0062c, MIT), whose profile shows the blocks that cuDNN took.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.cudnn import Direction, conv_workspace, features, workspace_data

from .build import meta

MiB = 1 << 20
RTX3060 = KernelContext(capability=(8, 6), torch_version=(2, 6), cudnn_version=90100)
A100 = KernelContext(capability=(8, 0), torch_version=(2, 6), cudnn_version=90100)


def workspace(
    direction: Direction,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    ctx: KernelContext = RTX3060,
    dtype: str = "float32",
    channels_last: bool = False,
) -> tuple[int, int, int]:
    dims = len(x) - 2
    pad = w[-1] // 2 if padding is None else padding
    sizes = [(x[d + 2] + 2 * pad - w[d + 2]) // stride + 1 for d in range(dims)]
    low, likely, high, label = conv_workspace(
        direction,
        meta(*x, dtype=dtype),
        meta(*w, dtype=dtype),
        meta(x[0], w[0], *sizes, dtype=dtype),
        groups,
        (stride,) * dims,
        (pad,) * dims,
        (1,) * dims,
        ctx,
        channels_last=channels_last,
    )
    assert label.startswith(f"cuDNN workspace ({direction})")
    return low, likely, high


# Direction, input, weight, stride, bytes that cuDNN 9.8.0 answered for an RTX 3060.
ANSWERS: list[tuple[Direction, tuple[int, ...], tuple[int, ...], int, int]] = [
    ("fwd", (32, 64, 56, 56), (64, 64, 3, 3), 1, 25_837_584),
    ("fwd", (480, 128, 43, 43), (128, 128, 3, 3), 1, 454_999_056),
    ("dgrad", (480, 128, 43, 43), (128, 128, 3, 3), 1, 909_410_320),
    ("wgrad", (480, 64, 86, 86), (64, 64, 3, 3), 1, 1_836_141_000),
    ("wgrad", (32, 128, 28, 28), (128, 128, 3, 3), 1, 26_280_000),
    ("fwd", (351, 256, 22, 22), (512, 256, 1, 1), 2, 174_496_784),
    ("wgrad", (32, 3, 224, 224), (64, 3, 7, 7), 2, 0),
    ("dgrad", (251, 16, 43, 43), (96, 16, 1, 1), 1, 13_000),
]


@pytest.mark.parametrize(("direction", "x", "w", "stride", "answer"), ANSWERS)
def test_what_cudnn_answered(
    direction: Direction, x: tuple[int, ...], w: tuple[int, ...], stride: int, answer: int
) -> None:
    low, likely, high = workspace(direction, x, w, stride=stride)
    slack = 0.02 * answer + MiB
    assert low - slack <= answer <= high + slack
    assert abs(likely - answer) <= 0.05 * answer + MiB


# Blocks of a real run on a GPU with TF32, from the profile named above.
SEEN: list[tuple[Direction, tuple[int, ...], tuple[int, ...], int, int]] = [
    ("fwd", (32, 64, 56, 56), (64, 64, 3, 3), 1, 25_838_080),
    ("fwd", (32, 256, 56, 56), (512, 256, 1, 1), 2, 103_285_248),
    ("fwd", (32, 256, 28, 28), (256, 256, 3, 3), 2, 28_049_920),
    ("fwd", (32, 128, 28, 28), (128, 128, 3, 3), 1, 13_435_392),
    ("dgrad", (32, 256, 14, 14), (256, 256, 3, 3), 1, 15_204_352),
    ("dgrad", (32, 2048, 7, 7), (512, 2048, 1, 1), 1, 20_247_552),
]


@pytest.mark.parametrize(("direction", "x", "w", "stride", "block"), SEEN)
def test_blocks_of_a_real_run(
    direction: Direction, x: tuple[int, ...], w: tuple[int, ...], stride: int, block: int
) -> None:
    _, likely, high = workspace(direction, x, w, stride=stride, ctx=A100)
    assert abs(likely - block) <= 0.12 * block
    assert high >= 0.95 * block


def test_without_tensor_cores_nothing_is_laid_out_anew() -> None:
    """A V100 has no TF32: the same convolution needs tables of offsets alone."""
    v100 = KernelContext(capability=(7, 0), torch_version=(2, 6))
    for direction in ("fwd", "dgrad", "wgrad"):
        assert workspace(direction, (32, 64, 56, 56), (64, 64, 3, 3), ctx=v100)[1] < MiB


def test_tf32_can_be_switched_off() -> None:
    plain = KernelContext(capability=(8, 0), torch_version=(2, 6), cudnn_allow_tf32=False)
    shape, kernel = (32, 128, 28, 28), (128, 128, 3, 3)
    with_tf32 = workspace("dgrad", shape, kernel, ctx=A100)[1]
    assert workspace("dgrad", shape, kernel, ctx=plain)[1] < with_tf32


def test_channels_last_needs_no_new_layout() -> None:
    shape, kernel = (32, 128, 28, 28), (128, 128, 3, 3)
    first = workspace("fwd", shape, kernel, ctx=A100, dtype="float16")[1]
    last = workspace("fwd", shape, kernel, ctx=A100, dtype="float16", channels_last=True)[1]
    assert last < MiB < first


def test_bfloat16_answers_like_float16() -> None:
    shape, kernel = (32, 128, 28, 28), (128, 128, 3, 3)
    half = workspace("fwd", shape, kernel, ctx=A100, dtype="float16")
    assert workspace("fwd", shape, kernel, ctx=A100, dtype="bfloat16") == half


def test_double_precision_is_an_estimate() -> None:
    low, likely, high = workspace("fwd", (8, 16, 32, 32), (16, 16, 3, 3), dtype="float64")
    assert (low, likely) == (0, 0)
    assert high == 8 * (2 * 8 * 16 * 1024 + 16 * 16 * 9)


def test_three_dimensions_are_an_estimate() -> None:
    x, w = meta(2, 32, 16, 56, 56), meta(32, 32, 3, 3, 3)
    ones = (1, 1, 1)
    low, likely, high, label = conv_workspace("fwd", x, w, x, 1, ones, ones, ones, A100)
    assert label.endswith("estimate")
    assert low == 0 <= likely <= high
    assert high >= 2 * (2 * x.nbytes + w.nbytes)


def test_one_dimension_has_a_height_of_one() -> None:
    flat = features((4, 8, 100), (16, 8, 3), (4, 16, 100), 1, (1,), (1,))
    image = features((4, 8, 1, 100), (16, 8, 1, 3), (4, 16, 1, 100), 1, (1, 1), (1, 1))
    assert flat == image


def test_benchmark_mode_tries_everything() -> None:
    tried = KernelContext(capability=(8, 0), torch_version=(2, 6), cudnn_benchmark=True)
    x, w = meta(32, 64, 56, 56), meta(64, 64, 3, 3)
    args = (x, w, x, 1, (1, 1), (1, 1), (1, 1))
    low, likely, high, label = conv_workspace("fwd", *args, tried)
    assert label.endswith("benchmark")
    assert low == 0
    assert likely >= 2 * x.nbytes
    assert high >= 2 * likely - w.nbytes


def test_an_empty_batch() -> None:
    empty = meta(0, 8, 4, 4)
    args = (empty, meta(8, 8, 3, 3), empty, 1, (1, 1), (1, 1), (1, 1))
    assert conv_workspace("fwd", *args, A100)[:3] == (0, 0, 0)


@pytest.mark.parametrize(
    ("capability", "cudnn"),
    [((7, 5), 90100), ((8, 7), 90100), ((9, 0), 90100), ((10, 3), 92000), ((12, 1), 92000)],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_gpu_has_an_answer(
    capability: tuple[int, int], cudnn: int, dtype: str, channels_last: bool
) -> None:
    ctx = KernelContext(capability=capability, torch_version=(2, 13), cudnn_version=cudnn)
    for direction in ("fwd", "dgrad", "wgrad"):
        low, likely, high = workspace(
            direction,
            (16, 64, 28, 28),
            (64, 64, 3, 3),
            ctx=ctx,
            dtype=dtype,
            channels_last=channels_last,
        )
        assert 0 <= low <= likely <= high


@settings(max_examples=60)
@given(
    st.integers(1, 512),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(3, 64),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from(["fwd", "dgrad", "wgrad"]),
    st.sampled_from([RTX3060, A100]),
)
def test_bounds_hold_and_stay_near_the_tensors(
    batch: int,
    channels: int,
    out_channels: int,
    size: int,
    kernel: int,
    direction: Direction,
    ctx: KernelContext,
) -> None:
    x, w = (batch, channels, size, size), (out_channels, channels, kernel, kernel)
    low, likely, high = workspace(direction, x, w, ctx=ctx)
    assert 0 <= low <= likely <= high
    tensors = [x, w, (batch, out_channels, size, size)]
    assert high <= 5 * 4 * sum(math.prod(shape) for shape in tensors)


def test_the_data_says_where_it_comes_from() -> None:
    data = workspace_data()
    assert "cuDNN 9.8.0.87" in data["source"]
    names = data["features"]
    example = features((1, 4, 8, 8), (4, 4, 3, 3), (1, 4, 8, 8), 1, (1, 1), (1, 1))
    assert len(names) == len(example)


def test_every_tree_is_sound() -> None:
    names = workspace_data()["features"]

    def leaves(node: Any) -> int:
        if not isinstance(node[-1], list):
            assert len(node) == 4
            assert sum(node) > 0
            return 1
        assert 0 <= node[0] < len(names)
        return leaves(node[2]) + leaves(node[3])

    for key, tree in workspace_data()["trees"].items():
        assert leaves(tree["tree"]) <= 48, key
        assert tree["scale"][0] == 0
        assert all(0 < ratio < 20 for ratio in tree["scale"][1:]), key


@pytest.mark.parametrize(
    ("cudnn", "sm", "tf32", "kept"),
    [(90100, (8, 6), True, True), (90501, (8, 0), True, True), (90800, (8, 6), True, False),
     (90100, (7, 5), True, False), (90100, (8, 6), False, False)],
)  # fmt: skip
def test_grouped_convolutions_before_9_8(
    cudnn: int, sm: tuple[int, int], tf32: bool, kept: bool
) -> None:
    ctx = KernelContext(
        capability=sm, torch_version=(2, 6), cudnn_version=cudnn, cudnn_allow_tf32=tf32
    )
    x, w, y = meta(312, 48, 43, 43), meta(48, 8, 3, 3), meta(312, 48, 22, 22)
    for direction in ("fwd", "dgrad", "wgrad"):
        low, likely, _, label = conv_workspace(direction, x, w, y, 6, (2, 2), (1, 1), (1, 1), ctx)
        if direction == "fwd":
            assert label.endswith("inferred") == kept
            assert (low == 0 and x.nbytes <= likely <= 1.1 * (x.nbytes + w.nbytes)) or not kept
        else:
            assert not label.endswith("inferred")
