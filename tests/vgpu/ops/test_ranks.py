"""Indices out of an order that is not known: dealt in turn, each once in its row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.ops.ranks import in_turn
from ebbtide.vgpu.virtual_gpu import VirtualGpu


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(0, 9),
)
def test_a_row_has_each_index_once(shape: list[int], dim: int, more: int) -> None:
    dim %= len(shape)
    extent = shape[dim] + more
    dealt = in_turn(tuple(shape), dim, extent)
    assert list(dealt.shape) == shape
    assert 0 <= int(dealt.min()) <= int(dealt.max()) < extent
    for row in dealt.movedim(dim, -1).reshape(-1, shape[dim]):
        assert row.unique().numel() == shape[dim]


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 6))
def test_choices_are_spread_evenly(rows: int, each: int, more: int) -> None:
    counts = in_turn((rows, each), 1, each + more).flatten().bincount(minlength=each + more)
    assert int(counts.max() - counts.min()) <= 1


def test_experts_share_the_tokens(gpu: VirtualGpu) -> None:
    scores = torch.randn(32, 8, device="cuda").softmax(-1)
    _, chosen = scores.topk(2, dim=-1)
    gates = torch.zeros(32, 8, device="cuda").scatter(1, chosen, 1)
    sizes = gates.long().sum(0).tolist()
    assert sizes == [8] * 8
    tokens = torch.randn(64, 4, device="cuda")
    assert [part.shape[0] for part in tokens.split(sizes)] == sizes
    mask = torch.nn.functional.one_hot(chosen, 8).permute(2, 1, 0)
    assert all(len(torch.where(expert)[1]) == 8 for expert in mask)


@pytest.mark.parametrize("call", [torch.sort, torch.Tensor.sort, torch.Tensor.argsort])
def test_a_sort_is_a_permutation(gpu: VirtualGpu, call: object) -> None:
    noise = torch.randn(3, 10, device="cuda")
    found = call(noise, dim=1)  # type: ignore[operator]
    shuffle = found if isinstance(found, torch.Tensor) else found[1]
    back = shuffle.argsort(dim=1)
    expected = torch.arange(10).expand(3, 10)
    assert torch.equal(shuffle.cpu().gather(1, back.cpu()), expected)


def test_what_is_known_is_kept(gpu: VirtualGpu) -> None:
    values, places = torch.tensor([4.0, 9.0, 1.0], device="cuda").topk(2)
    assert (values.tolist(), places.tolist()) == ([9.0, 4.0], [1, 0])
    assert torch.tensor([2, 0, 1], device="cuda").argsort().tolist() == [1, 2, 0]


def test_a_random_permutation_is_one(gpu: VirtualGpu) -> None:
    for dtype in (torch.int64, torch.int32):
        order = torch.randperm(7, device="cuda", dtype=dtype)
        assert order.dtype is dtype
        assert sorted(order.tolist()) == list(range(7))


def test_a_single_value(gpu: VirtualGpu) -> None:
    value = torch.randn(9, device="cuda").sum()
    assert value.sort()[1].shape == ()
    assert value.topk(1)[1].shape == ()
    assert torch.randn(0, device="cuda").sort()[1].shape == (0,)
