"""Values of small tensors: followed where known, a dummy and a guess where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.vgpu.shadow import Shadows, count_true, fakes_in
from ebbtide.vgpu.virtual_gpu import VirtualGpu


@given(st.lists(st.integers(0, 300), max_size=3))
def test_what_is_small(shape: list[int]) -> None:
    count = torch.Size(shape).numel()
    assert Shadows.small(shape, torch.float32) is (count <= 1 << 14)
    assert Shadows.small(shape, torch.int64) is (count <= 1 << 16)
    assert Shadows.small(shape, torch.bool) is (count <= 1 << 16)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 1 << 20))
def test_what_is_expanded_counts_once(shape: list[int], times: int) -> None:
    tensor = torch.empty(*shape, 1).expand(*shape, times)
    assert Shadows.small(tensor.shape, torch.int64, tensor.stride())
    assert Shadows.small(tensor.shape, torch.int64) is (tensor.numel() <= 1 << 16)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(0, 4), st.integers(1, 4))
def test_counting_what_is_expanded(values: list[bool], times: int, more: int) -> None:
    tensor = torch.tensor(values)[:, None, None].expand(-1, times, more)
    assert count_true(tensor) == int(tensor.sum())
    assert count_true(tensor.transpose(0, 2)) == int(tensor.sum())


_STEPS = {
    "plus": lambda t: t + 3,
    "times": lambda t: t * t,
    "flip": lambda t: t.flip(0),
    "cumsum": lambda t: t.cumsum(0),
    "sort": lambda t: t.sort()[0],
    "mask": lambda t: (t > 2).long(),
    "view": lambda t: t.view(2, -1).t().reshape(-1),
    "cat": lambda t: torch.cat([t[1:], t[:1]]),
    "where": lambda t: torch.where(t > 0, t, -t),
    "in place": lambda t: t.clone().mul_(2),
    "clamp": lambda t: t.clamp(-5, 5),
    "index": lambda t: t[torch.tensor([3, 2, 1, 0], device=t.device)],
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(-9, 9), min_size=4, max_size=4),
    st.lists(st.sampled_from(sorted(_STEPS)), max_size=4),
)
def test_integers_are_followed(gpu: VirtualGpu, values: list[int], steps: list[str]) -> None:
    here, there = torch.tensor(values), torch.tensor(values, device="cuda")
    for step in steps:
        here, there = _STEPS[step](here), _STEPS[step](there)
    assert there.is_cuda
    assert there.tolist() == here.tolist()
    assert gpu.guesses == {}


def test_a_length_read_back_is_exact(gpu: VirtualGpu) -> None:
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[:, 5:] = False
    there = mask.cuda()
    assert int(there.sum(-1).max()) == 5
    assert there.all().item() is False
    assert gpu.guesses == {}


def test_a_loss_is_a_dummy_and_a_guess(gpu: VirtualGpu) -> None:
    loss = torch.randn(64, 64, device="cuda").mean()
    assert loss.item() == 1.0
    assert float(loss) == 1.0
    assert f"{loss:.2f}" == "1.00"
    text, count = gpu.guesses["item"]
    assert "dummy" in text
    assert count == 3


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float32, 1.0), (torch.int64, 0), (torch.bool, False), (torch.complex64, 1 + 0j)],
)
def test_dummies_by_dtype(gpu: VirtualGpu, dtype: torch.dtype, expected: Any) -> None:
    unknown = gpu.mode.new_tensor((), torch.empty(1, device="cuda"), dtype)
    value = unknown.item()
    assert value == expected
    assert type(value) is type(expected)


def test_random_numbers_are_not_known(gpu: VirtualGpu) -> None:
    drawn = torch.randint(0, 9, (4,), device="cuda")
    assert gpu.mode.shadows.known(drawn) is None


def test_in_place_from_unknown_forgets(gpu: VirtualGpu) -> None:
    known = torch.zeros(4, device="cuda")
    assert gpu.mode.shadows.known(known) is not None
    known.add_(torch.randn(4, device="cuda"))
    assert gpu.mode.shadows.known(known) is None


def test_drawn_in_place_is_forgotten(gpu: VirtualGpu) -> None:
    known = torch.zeros(4, device="cuda")
    known.normal_()
    assert gpu.mode.shadows.known(known) is None


def test_sound_values_are_taken_for_granted(gpu: VirtualGpu) -> None:
    loss = torch.randn(3, 3, device="cuda").sum()
    assert bool(torch.isfinite(loss))
    assert not bool(torch.isnan(loss))
    assert not bool(torch.isinf(loss))


def test_a_known_scalar_is_read_exactly(gpu: VirtualGpu) -> None:
    assert (torch.tensor(2.5, device="cuda") * 2).item() == 5.0
    assert bool(torch.tensor([3], device="cuda") == 3)
    assert gpu.guesses == {}


def test_fakes_are_found_in_nests(gpu: VirtualGpu) -> None:
    one, two = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
    assert list(fakes_in([one, (two, [one]), 5, "x"])) == [one, two, one]


def test_values_cost_no_gpu_memory(gpu: VirtualGpu) -> None:
    ids = torch.arange(1000, device="cuda")
    assert gpu.memory.memory_allocated() == 8192
    del ids
    assert gpu.memory.memory_allocated() == 0


def test_a_mask_over_features_is_still_known(gpu: VirtualGpu) -> None:
    ids = torch.tensor([[5, 9, 5, 1]] * 2).cuda()
    features = torch.randn(2, 4, 100_000, device="cuda")
    mask = (ids == 5).unsqueeze(-1).expand_as(features).to(features.device)
    assert features[mask].numel() == 4 * 100_000
    assert features.masked_select(mask).numel() == 4 * 100_000
    assert not {"nonzero", "mask"} & set(gpu.guesses)


def test_a_view_of_unknown_numbers_is_unknown(gpu: VirtualGpu) -> None:
    drawn = torch.randint(1, 9, (2, 6), device="cuda")
    assert gpu.mode.shadows.known(drawn.flatten(1)) is None
    assert drawn.view(12).nonzero().shape == (12, 1)
    assert "nonzero" in gpu.guesses


def test_masks_of_floats_are_followed(gpu: VirtualGpu) -> None:
    second = torch.zeros(2, 200, device="cuda")
    second[:, 100:] = 1
    first = 1 - second.tile(1, 3)
    assert (first * 2).nonzero().shape == (2 * 300, 2)
    assert gpu.guesses == {}


def test_a_computed_number_is_none_in_particular(gpu: VirtualGpu) -> None:
    images = torch.rand(3, 4, 200, 200, device="cuda")
    real = (images == 0.0).sum(dim=(1, 2, 3)) != 4 * 200 * 200
    assert real.tolist() == [True] * 3
    assert (images != 0.0).all().item() is True
    assert "equality" in gpu.guesses
    assert "item" not in gpu.guesses


def test_a_guess_that_holds_throughout_can_be_written_to(gpu: VirtualGpu) -> None:
    same = torch.randn(6, device="cuda") == 1.0
    same[2] = True
    assert same.nonzero().tolist() == [[2]]
    large = torch.randn(1 << 17, device="cuda") == 1.0
    large[5:7] = True
    assert large.nonzero().shape == (0, 1)
    large |= torch.randn(1 << 17, device="cuda") > 0
    assert gpu.mode.shadows.known(large) is None


def test_none_is_true_after_it_was_asked_for(gpu: VirtualGpu) -> None:
    done = torch.randn(6, device="cuda") > 0
    rows = torch.arange(6, device="cuda")
    assert rows[done].shape == (6,)
    assert not torch.any(done)
    assert not torch.all(done)
    assert rows[done].shape == (0,)
    assert rows[~done].shape == (6,)


def test_an_operation_that_fails_on_values_loses_them(gpu: VirtualGpu) -> None:
    counts = torch.tensor([1, 2, 3], device="cuda")
    places = torch.tensor([7], device="cuda")  # out of bounds, which a GPU says later
    counts.index_fill_(0, places, 0)
    assert gpu.mode.shadows.known(counts) is None
