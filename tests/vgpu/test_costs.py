"""FLOP counts are held against torch's own counter, which knows nothing of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ebbtide.vgpu.costs import NOTHING, Cost, op_cost
from ebbtide.vgpu.tensors import TensorMeta

F = torch.nn.functional


def meta(*shape: int, dtype: str = "float32", itemsize: int = 4) -> TensorMeta:
    strides = tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
    return TensorMeta(shape, strides, dtype, itemsize)


def half(*shape: int) -> TensorMeta:
    return meta(*shape, dtype="float16", itemsize=2)


def describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return TensorMeta(tuple(value.shape), value.stride(), name, value.dtype.itemsize)
    if isinstance(value, list | tuple):
        return tuple(describe(item) for item in value)
    return value


class Recorder(TorchDispatchMode):
    """The costs of the operations that a function performs."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[tuple[str, Cost]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        outputs = result if isinstance(result, list | tuple) else (result,)
        name = func._schema.name.removeprefix("aten::")
        inputs = describe(tuple(args) + tuple(kwargs.values()))
        metas = tuple(describe(out) for out in outputs if isinstance(out, torch.Tensor))
        self.costs.append((name, op_cost(name, inputs, metas)))
        return result


def both(function: Callable[[], Any]) -> tuple[int, int]:
    """FLOP of `function`: ours and torch's."""
    with Recorder() as ours:
        function()
    with FlopCounterMode(display=False) as theirs:
        function()
    return sum(cost.flops for _, cost in ours.costs), theirs.get_total_flops()


def tensor(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.empty(*shape, device="meta", requires_grad=grad)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: tensor(3, 5) @ tensor(5, 7), 2 * 3 * 5 * 7),
        (lambda: torch.bmm(tensor(4, 3, 5), tensor(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
        (lambda: torch.addmm(tensor(7), tensor(3, 5), tensor(5, 7)), 2 * 3 * 5 * 7),
        (lambda: torch.baddbmm(tensor(1), tensor(4, 3, 5), tensor(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
        (lambda: F.linear(tensor(2, 3, 5), tensor(7, 5), tensor(7)), 2 * 6 * 5 * 7),
        (lambda: torch.einsum("bij,bjk->bik", tensor(2, 3, 4), tensor(2, 4, 5)), 240),
    ],
)
def test_products_agree_with_torchs_counter(function: Callable[[], Any], expected: int) -> None:
    assert both(function) == (expected, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda: F.conv2d(tensor(2, 8, 16, 16), tensor(12, 8, 3, 3), stride=2, padding=1),
        lambda: F.conv2d(tensor(2, 8, 16, 16), tensor(8, 1, 3, 3), groups=8),
        lambda: F.conv2d(tensor(2, 8, 16, 16), tensor(8, 2, 3, 3), groups=4, dilation=2),
        lambda: F.conv1d(tensor(2, 8, 50), tensor(4, 8, 5)),
        lambda: F.conv3d(tensor(1, 2, 9, 9, 9), tensor(4, 2, 3, 3, 3)),
        lambda: F.conv_transpose2d(tensor(2, 8, 7, 7), tensor(8, 4, 3, 3), stride=2),
    ],
)
def test_convolutions_agree_with_torchs_counter(function: Callable[[], Any]) -> None:
    ours, theirs = both(function)
    assert ours == theirs > 0


def convolution_step(
    grad_input: bool, transposed: bool = False, **settings: Any
) -> Callable[[], Any]:
    layer = F.conv_transpose2d if transposed else F.conv2d

    def step() -> None:
        image, weight = tensor(2, 8, 16, 16, grad=grad_input), tensor(8, 8, 3, 3, grad=True)
        layer(image, weight, **settings).sum().backward()

    return step


@pytest.mark.parametrize("grad_input", [True, False])
@pytest.mark.parametrize("settings", [{}, {"padding": 1, "stride": 2}, {"transposed": True}])
def test_convolutions_backward_agree_with_torchs_counter(
    grad_input: bool, settings: dict[str, Any]
) -> None:
    ours, theirs = both(convolution_step(grad_input, **settings))
    assert ours == theirs > 0


def test_a_step_of_a_network_agrees_with_torchs_counter() -> None:
    with torch.device("meta"):
        network = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(16 * 15 * 15, 32),
            torch.nn.GELU(),
            torch.nn.Linear(32, 10),
        )

    def step() -> None:
        loss = F.cross_entropy(network(tensor(4, 3, 32, 32)), tensor(4, 10).softmax(1))
        loss.backward()

    ours, theirs = both(step)
    assert ours == theirs > 0


def attention(*heads: int, name: str, **extra: Any) -> Cost:
    rows, columns, width = extra.pop("rows", 64), extra.pop("columns", 64), 32
    query = half(2, heads[0], rows, width)
    key = value = half(2, heads[-1], columns, width)
    out = half(2, heads[0], rows, width)
    arguments = extra.pop("arguments", (query, key, value, 0.0, False))
    arguments = tuple(
        {"q": query, "k": key, "v": value, "o": out}.get(item, item)
        if isinstance(item, str)
        else item
        for item in arguments
    )
    return op_cost(name, arguments, (out,))


FLASH = "_scaled_dot_product_flash_attention"
FORWARD = 2 * (2 * 8 * 64 * 64 * 32) * 2  # two products for two in the batch, eight heads


def test_attention_is_two_products_and_no_scores_in_memory() -> None:
    cost = attention(8, name=FLASH)
    assert cost.flops == FORWARD
    assert cost.moved_bytes == 4 * 2 * (2 * 8 * 64 * 32)
    assert cost.dtype_for_rate == "float16"


def test_attention_agrees_with_torchs_counter() -> None:
    def step() -> None:
        query, key, value = (tensor(2, 8, 64, 32) for _ in range(3))
        torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)

    with FlopCounterMode(display=False) as theirs:
        step()
    assert theirs.get_total_flops() == FORWARD


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (FLASH, ("q", "k", "v", 0.0, True)),
        ("_scaled_dot_product_efficient_attention", ("q", "k", "v", None, True, 0.0, True)),
        ("_scaled_dot_product_cudnn_attention", ("q", "k", "v", None, True, 0.0, True)),
    ],
)
def test_a_causal_mask_halves_the_work(name: str, arguments: tuple[Any, ...]) -> None:
    assert attention(8, name=name, arguments=arguments).flops == FORWARD // 2
    plain = (*arguments[:-1], False)
    assert attention(8, name=name, arguments=plain).flops == FORWARD
    # One new token sees the whole past.
    decoding = attention(8, name=name, arguments=arguments, rows=1)
    assert decoding.flops == FORWARD // 64


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (f"{FLASH}_backward", ("o", "q", "k", "v", "o", None, None, None, 64, 64, 0.0)),
        (
            "_scaled_dot_product_efficient_attention_backward",
            ("o", "q", "k", "v", None, "o", None, None, None, 0.0, (True,) * 3),
        ),
        (
            "_scaled_dot_product_cudnn_attention_backward",
            ("o", "q", "k", "v", "o", None, None, None, None, None, None, 64, 64, 0.0),
        ),
    ],
)
def test_backward_is_five_products(name: str, arguments: tuple[Any, ...]) -> None:
    plain = attention(8, name=name, arguments=(*arguments, False))
    assert plain.flops == FORWARD * 5 // 2
    causal = attention(8, name=name, arguments=(*arguments, True))
    assert causal.flops == FORWARD * 5 // 4


def test_shared_keys_save_memory_and_no_work() -> None:
    shared, own = attention(8, 2, name=FLASH), attention(8, name=FLASH)
    assert shared.flops == own.flops
    assert shared.moved_bytes < own.moved_bytes


def test_the_layout_of_the_bare_flash_kernel() -> None:
    query = half(2, 64, 8, 32)  # batch, sequence, heads, width
    arguments = (query, query, query, None, None, 64, 64, 0.0, True)
    cost = op_cost("_flash_attention_forward", arguments, (query,))
    assert cost.flops == FORWARD // 2


def test_packed_sequences_are_bound_by_memory() -> None:
    packed = half(100, 32)
    assert op_cost(FLASH, (packed, packed, packed), (packed,)).flops == 0


@pytest.mark.parametrize(
    "name", ["view", "t", "expand", "as_strided", "detach", "empty", "split", "_unsafe_view"]
)
def test_a_view_costs_nothing(name: str) -> None:
    assert op_cost(name, (meta(4, 4),), (meta(16),)) == NOTHING


def test_elementwise_reads_and_writes() -> None:
    x = meta(1000)
    assert op_cost("add", (x, x), (x,)).moved_bytes == 12_000
    assert op_cost("add_", (x, x), (x,)).moved_bytes == 12_000
    assert op_cost("relu", (x,), (x,)) == Cost(0, 8_000, "float32")
    assert op_cost("sum", (x,), (meta(),)).moved_bytes == 4_004
    assert op_cost("cat", ((x, x), 0), (meta(2000),)).moved_bytes == 16_000


def test_what_is_only_written_is_not_read() -> None:
    x = meta(1000)
    assert op_cost("zeros_like", (x,), (x,)).moved_bytes == 4_000
    assert op_cost("fill_", (x, 0.0), (x,)).moved_bytes == 4_000
    assert op_cost("randn", ((1000,),), (x,)).moved_bytes == 4_000
    assert op_cost("copy_", (x, half(1000)), (x,)).moved_bytes == 6_000


def test_an_expanded_dimension_is_read_once() -> None:
    row = TensorMeta((1000, 1000), (0, 1), "float32", 4)
    assert op_cost("clone", (row,), (meta(1000, 1000),)).moved_bytes == 4_000 + 4_000_000
    empty = TensorMeta((0, 5), (0, 1), "float32", 4)
    assert op_cost("clone", (empty,), (meta(0, 5),)) == Cost(0, 0, "float32")


def test_an_embedding_reads_the_rows_it_needs() -> None:
    table, tokens = half(50_000, 1024), meta(8, 128, dtype="int64", itemsize=8)
    out = half(8, 128, 1024)
    cost = op_cost("embedding", (table, tokens), (out,))
    assert cost.moved_bytes == 2 * out.nbytes + tokens.nbytes < table.nbytes


def test_scattering_touches_the_places_it_writes() -> None:
    cache, rows = half(8, 4096, 128), half(8, 1, 128)
    places = meta(8, dtype="int64", itemsize=8)
    cost = op_cost("index_put_", (cache, (places,), rows), (cache,))
    assert cost.moved_bytes == 3 * (rows.nbytes + places.nbytes) < cache.nbytes


def test_lists_that_return_nothing_are_written_all_the_same() -> None:
    some = (meta(100), meta(200))
    assert op_cost("_foreach_mul_", (some, 0.9), ()).moved_bytes == 2 * 1200
    adam = (some, some, some, some, (), (meta(), meta()))
    # Four lists and the steps are read; parameters and both averages are written.
    assert op_cost("_fused_adamw_", adam, ()).moved_bytes == 7 * 1200 + 8


def test_recurrent_layers_meet_every_weight_at_every_step() -> None:
    sequence = meta(20, 4, 32)  # time, batch, features
    weights = (meta(256, 32), meta(256, 64), meta(256), meta(256))
    forward = op_cost("_cudnn_rnn", (sequence, weights, 4), (meta(20, 4, 64),))
    assert forward.flops == 2 * 80 * (256 * 32 + 256 * 64)
    assert forward.dtype_for_rate == "tf32"
    backward = op_cost("_cudnn_rnn_backward", (sequence, weights, 4), (sequence,))
    assert backward.flops == 2 * forward.flops


def test_single_precision_rounds_only_where_torch_lets_it() -> None:
    x = meta(64, 64)
    image, weight = meta(1, 8, 9, 9), meta(8, 8, 3, 3)
    out = meta(1, 8, 7, 7)
    arguments = (image, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    assert op_cost("mm", (x, x), (x,)).dtype_for_rate == "float32"
    assert op_cost("mm", (x, x), (x,), matmul_tf32=True).dtype_for_rate == "tf32"
    assert op_cost("convolution", arguments, (out,)).dtype_for_rate == "tf32"
    assert op_cost("convolution", arguments, (out,), conv_tf32=False).dtype_for_rate == "float32"
    assert op_cost("mm", (half(4, 4),) * 2, (half(4, 4),), matmul_tf32=True).dtype_for_rate == (
        "float16"
    )


def test_grouped_products_count_each_token_once() -> None:
    tokens, experts = half(100, 64), half(8, 64, 256)
    offsets = meta(8, dtype="int32", itemsize=4)
    forward = op_cost("_grouped_mm", (tokens, experts, offsets), (half(100, 256),))
    assert forward.flops == 2 * 100 * 64 * 256
    # The weights' gradient: the tokens are parted among eight outputs.
    gradient = op_cost("_grouped_mm", (half(64, 100), half(100, 256), offsets), (half(8, 64, 256),))
    assert gradient.flops == 2 * 64 * 100 * 256


def test_an_operation_nobody_listed_is_bound_by_memory() -> None:
    assert op_cost("my_custom_op", (meta(10), 3, None, "x"), (meta(10),)) == Cost(0, 80, "float32")
    assert op_cost("nothing_at_all", (), ()) == NOTHING


@given(
    st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.sampled_from(["float16", "int8"])
)
def test_work_grows_with_each_side(m: int, k: int, n: int, dtype: str) -> None:
    def cost(m: int, k: int, n: int) -> Cost:
        return op_cost(
            "mm", (meta(m, k, dtype=dtype), meta(k, n, dtype=dtype)), (meta(m, n, dtype=dtype),)
        )

    one = cost(m, k, n)
    assert one.flops == 2 * m * k * n
    for larger in (cost(m + 1, k, n), cost(m, k + 1, n), cost(m, k, n + 1)):
        assert larger.flops > one.flops
        assert larger.moved_bytes > one.moved_bytes


@given(st.integers(1, 200))
def test_costs_are_affine_in_the_batch(batch: int) -> None:
    def cost(batch: int) -> Cost:
        bias, out = half(512), half(batch, 512)
        return op_cost("addmm", (bias, half(batch, 256), half(256, 512)), (out,))

    one, two, many = cost(1), cost(2), cost(batch)
    assert many.flops == one.flops + (batch - 1) * (two.flops - one.flops)
    assert many.moved_bytes == one.moved_bytes + (batch - 1) * (two.moved_bytes - one.moved_bytes)


def test_torch_is_not_needed() -> None:
    code = "import sys, ebbtide.vgpu.costs, ebbtide.vgpu.clock; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
