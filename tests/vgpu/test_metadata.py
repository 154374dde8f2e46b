"""The metadata cache gives what FakeTensor gives, every time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ebbtide.vgpu.metadata import FakeMaker, Output, describe_outputs, key_of
from ebbtide.vgpu.virtual_gpu import VirtualGpu

aten = torch.ops.aten


def _facts(value: Any) -> Any:
    """All that can be asked of a result's metadata."""
    if isinstance(value, torch.Tensor):
        return (
            tuple(value.shape), value.stride(), value.storage_offset(), value.dtype,
            value.device.type, value.untyped_storage().nbytes(),
        )  # fmt: skip
    if isinstance(value, tuple | list):
        return [_facts(item) for item in value]
    return value


# -- operations with random shapes, strides and offsets, against FakeTensor alone

_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64]


@st.composite
def strided(draw: Any) -> tuple[tuple[int, ...], str, torch.dtype]:
    """A shape, how it is laid out, and a dtype."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    layout = draw(st.sampled_from(["plain", "transposed", "sliced", "expanded", "offset"]))
    return shape, layout, draw(st.sampled_from(_DTYPES))


def _tensor(spec: tuple[tuple[int, ...], str, torch.dtype]) -> torch.Tensor:
    shape, layout, dtype = spec
    if layout == "transposed":
        swapped = (*shape[:-2], shape[-1], shape[-2])
        return torch.empty(swapped, dtype=dtype, device="cuda").transpose(-1, -2)
    if layout == "sliced":
        return torch.empty((*shape[:-1], 2 * shape[-1]), dtype=dtype, device="cuda")[..., ::2]
    if layout == "expanded":
        return torch.empty((1, *shape[1:]), dtype=dtype, device="cuda").expand(shape)
    if layout == "offset":
        return torch.empty((3, *shape), dtype=dtype, device="cuda")[1]
    return torch.empty(shape, dtype=dtype, device="cuda")


_OPERATIONS = {
    "add": lambda t: t + t,
    "add scalar": lambda t: t + 1,
    "add float": lambda t: t + 1.5,
    "multiply by bool": lambda t: t * True,
    "transpose": lambda t: t.transpose(0, 1),
    "slice": lambda t: t[..., :1],
    "contiguous": lambda t: t.contiguous(),
    "clone": lambda t: t.clone(),
    "sum": lambda t: t.sum(-1),
    "amax": lambda t: t.amax(0),
    "cat": lambda t: torch.cat([t, t], -1),
    "split": lambda t: t.split(1, -1),
    "unbind": lambda t: t.unbind(0),
    "where": lambda t: torch.where(t > 0, t, 0),
    "to": lambda t: t.to(torch.float32),
    "softmax": lambda t: torch.softmax(t.float(), -1),
    "matmul": lambda t: t.float() @ t.float().transpose(-1, -2),
    "sort": lambda t: t.sort(-1),
    "like": torch.zeros_like,
    "reshape": lambda t: t.reshape(-1),
    "expand": lambda t: t[None].expand(2, *t.shape),
    "in place": lambda t: t.clone().add_(1),
    "flip": lambda t: t.flip(0),
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strided(), st.sampled_from(sorted(_OPERATIONS)))
def test_the_cache_answers_as_faketensor(
    gpu: VirtualGpu, spec: tuple[tuple[int, ...], str, torch.dtype], name: str
) -> None:
    operation, data = _OPERATIONS[name], _tensor(spec)
    first, again = _facts(operation(data)), _facts(operation(data))
    gpu.mode.plans.clear()
    fresh = _facts(operation(_tensor(spec)))
    assert first == again == fresh
    with torch.utils._python_dispatch._disable_current_modes():
        alone = FakeTensorMode()
        shape, stride, offset = tuple(data.shape), data.stride(), data.storage_offset()
        with alone:
            size = data.untyped_storage().nbytes() // data.dtype.itemsize
            base = torch.empty(size, dtype=data.dtype, device="cpu")
            expected = _facts(operation(base.as_strided(shape, stride, offset)))
    assert _without_device(first) == _without_device(expected)


def _without_device(facts: Any) -> Any:
    if isinstance(facts, list):
        return [_without_device(item) for item in facts]
    return (*facts[:4], facts[5]) if isinstance(facts, tuple) else facts


# -- what the key tells apart


def _key(*values: Any) -> tuple[Any, ...]:
    key: list[Any] = []
    key_of(values, key, [])
    return tuple(key)


def test_equal_scalars_of_other_types_are_other_arguments() -> None:
    assert len({_key(1), _key(1.0), _key(True), _key("1")}) == 4
    assert _key(None) != _key(0)
    assert _key(2) == _key(2)


def test_lists_are_told_apart_from_their_parts() -> None:
    assert _key([1, 2], 3) != _key([1], 2, 3)
    assert _key([], 1) != _key([1])
    assert _key((1, 2)) == _key([1, 2])


def test_everything_about_a_tensor_counts(gpu: VirtualGpu) -> None:
    base = torch.empty(4, 4, device="cuda")
    variants = [
        base, base[:2], base.t()[:, :2], base[2:], base.to(torch.float16), base.cpu(),
        base.view(16), torch.empty(4, 4, device="cuda", dtype=torch.int32),
    ]  # fmt: skip
    assert len({_key(tensor) for tensor in variants}) == len(variants)
    assert _key(base) == _key(torch.empty(4, 4, device="cuda"))


def test_the_tensors_come_out_in_order(gpu: VirtualGpu) -> None:
    a, b, c = (torch.empty(1, device="cuda") for _ in range(3))
    found: list[torch.Tensor] = []
    key_of((a, [b, (c, 5)], None), [], found)
    assert [id(tensor) for tensor in found] == [id(a), id(b), id(c)]


# -- outputs: the same, a view, or new


@pytest.fixture
def fake_mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _described(
    fake_mode: FakeTensorMode, operation: Any, *tensors: torch.Tensor
) -> tuple[tuple[Output | None, ...] | None, type | None]:
    given = [fake_mode.from_tensor(tensor) for tensor in tensors]
    with fake_mode:
        result = operation(*given)
    return describe_outputs(result, given, given)


def test_an_in_place_result_is_its_argument(fake_mode: FakeTensorMode) -> None:
    outputs, wrap = _described(fake_mode, lambda t: t.add_(1), torch.ones(3))
    assert wrap is None
    assert outputs is not None
    assert outputs[0] is not None
    assert outputs[0].same == 0


def test_a_view_names_its_base(fake_mode: FakeTensorMode) -> None:
    outputs, _ = _described(fake_mode, lambda a, b: b[2:], torch.ones(3), torch.ones(9))
    assert outputs is not None
    assert outputs[0] is not None
    assert (outputs[0].same, outputs[0].alias, outputs[0].offset) == (-1, 1, 2)


def test_new_outputs_and_none(fake_mode: FakeTensorMode) -> None:
    outputs, wrap = _described(fake_mode, lambda t: (t + 1, None, t[:1]), torch.ones(3))
    assert wrap is tuple
    assert outputs is not None
    assert outputs[1] is None
    assert [o.alias for o in outputs if o is not None] == [-1, 0]


def test_what_cannot_be_made_from_metadata_is_said(fake_mode: FakeTensorMode) -> None:
    def shares(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fresh = t + 1
        return fresh, fresh[1:]

    assert _described(fake_mode, shares, torch.ones(3))[0] is None
    assert _described(fake_mode, lambda t: 5, torch.ones(3))[0] is None
    assert _described(fake_mode, lambda t: t.to_sparse(), torch.ones(3))[0] is None


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((2, 3), (3, 1), 24),
        ((2, 3), (1, 2), 24),
        ((2, 3), (8, 1), 44),  # rows apart: from the first element to the last
        ((5,), (0,), 4),
        ((), (), 4),
        ((0, 3), (3, 1), 0),
    ],
)
def test_bytes_of_an_output(shape: Any, stride: Any, expected: int) -> None:
    made = Output(shape, stride, torch.float32, torch.device("cuda", 0))
    assert made.nbytes == expected
    assert Output(shape, stride, torch.float32, torch.device("cpu")).nbytes == 0


def test_what_is_made_is_a_fake_tensor_like_any(fake_mode: FakeTensorMode) -> None:
    maker = FakeMaker(fake_mode)
    output = Output((2, 3), (1, 2), torch.float16, torch.device("cpu"))
    made = maker.make(output, [])
    example = fake_mode.from_tensor(torch.empty_strided((2, 3), (1, 2), dtype=torch.float16))
    assert isinstance(made, FakeTensor)
    assert _facts(made) == _facts(example)
    assert made.fake_mode is fake_mode
    assert set(example.__dict__) <= set(made.__dict__) | {"_nonzero_memo", "_item_memo"}
    with fake_mode:
        assert _facts(made + 1) == _facts(example + 1)
    like = maker.like(torch.empty(4), torch.device("cpu"))
    assert tuple(like.shape) == (4,)
