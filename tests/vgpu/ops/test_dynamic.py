"""Operations whose size depends on values: launched, waited for, exact or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ebbtide.vgpu.tape import SYNC
from ebbtide.vgpu.virtual_gpu import VirtualGpu

Names = Callable[[], list[str]]

KNOWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda t: t.nonzero(),
    "where": lambda t: torch.where(t > 1),
    "masked_select": lambda t: t.masked_select(t > 1),
    "index": lambda t: t[t > 1],
    "unique": lambda t: t.unique(),
    "unique_consecutive": lambda t: t.unique_consecutive(),
    "bincount": lambda t: t.bincount(),
    "repeat_interleave": lambda t: t.repeat_interleave(t),
    "argwhere": lambda t: (t == 2).argwhere(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_values_give_exact_sizes(gpu: VirtualGpu, name: str) -> None:
    real = torch.tensor([0, 2, 1, 2, 3])
    expected, found = KNOWN[name](real), KNOWN[name](real.cuda())
    if isinstance(expected, torch.Tensor):
        expected, found = (expected,), (found,)
    assert [tuple(t.shape) for t in found] == [tuple(t.shape) for t in expected]
    assert all(tensor.is_cuda for tensor in found)
    assert gpu.guesses == {}


@pytest.mark.parametrize(
    ("kind", "call", "shape"),
    [
        ("nonzero", lambda t: t.nonzero(), (24, 2)),
        ("mask", lambda t: t.masked_select(t > 0), (24,)),
        ("nonzero", lambda t: t[t > 0], (24,)),
        ("unique", lambda t: t.unique(), (24,)),
        ("unique", lambda t: torch.unique(t, dim=0), (4, 6)),
        ("bincount", lambda t: t.flatten().long().bincount(minlength=5), (5,)),
    ],
)
def test_unknown_values_give_the_largest_size(
    gpu: VirtualGpu, kind: str, call: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    unknown = torch.randn(4, 6, device="cuda") * torch.randn(4, 6, device="cuda")
    assert tuple(call(unknown).shape) == shape
    assert kind in gpu.guesses


def test_unknown_counts_repeat_once(gpu: VirtualGpu) -> None:
    counts = torch.randint(0, 5, (6,), device="cuda")
    assert torch.repeat_interleave(counts).shape == (6,)
    assert "repeat" in gpu.guesses
    gpu.guesses.clear()
    assert torch.repeat_interleave(counts, output_size=9).shape == (9,)
    assert gpu.guesses == {}


def test_they_are_launched_and_the_host_waits(gpu: VirtualGpu, op_names: Names) -> None:
    data = torch.randn(1000, device="cuda")
    for call in (data.nonzero, data.unique):
        op_names()
        waits = gpu.tape.kind.count(SYNC)
        out = call()
        (name,) = op_names()
        assert name in ("nonzero", "_unique2")
        assert gpu.tape.kind.count(SYNC) == waits + 1
        row = gpu.mode.storages.row_of(out)
        assert row is not None
        assert gpu.tape.names.items[gpu.tape.op_name[gpu.tape.alloc_op[row]]] == f"aten::{name}"


def test_a_mask_becomes_indices(gpu: VirtualGpu, op_names: Names) -> None:
    data, mask = torch.randn(8, 3, device="cuda"), torch.tensor([True, False] * 4, device="cuda")
    op_names()
    assert data[mask].shape == (4, 3)
    assert op_names() == ["nonzero", "index"]


def test_gradients_flow_through_a_mask(gpu: VirtualGpu) -> None:
    data = torch.randn(8, 3, device="cuda", requires_grad=True)
    mask = torch.tensor([True, False] * 4, device="cuda")
    data[mask].sum().backward()
    assert data.grad is not None
    assert data.grad.shape == (8, 3)


def test_elements_that_are_all_taken_have_their_places(gpu: VirtualGpu) -> None:
    scores = torch.randn(30, 20, device="cuda")
    places = (scores > 0).nonzero()
    assert "nonzero" in gpu.guesses
    inside = (places[:, 0] >= 5) & (places[:, 0] < 25)
    assert places[inside].shape == (20 * 20, 2)
    assert scores[tuple(places.t())].shape == (600,)


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("call", [torch.unique, torch.unique_consecutive])
def test_unique_returns_what_was_asked(
    gpu: VirtualGpu, flags: tuple[bool, bool], dim: int | None, call: Any
) -> None:
    asked = {"return_inverse": flags[0], "return_counts": flags[1], "dim": dim}
    distinct = torch.arange(24.0).view(4, 6)
    unknown = torch.randn(4, 6, device="cuda")
    expected, found = call(distinct, **asked), call(unknown, **asked)
    if isinstance(expected, torch.Tensor):
        expected, found = (expected,), (found,)
    assert [tuple(t.shape) for t in found] == [tuple(t.shape) for t in expected]
    assert "unique" in gpu.guesses
