"""Values of small tensors: followed where known, a dummy and a guess where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.vgpu.shadow import Shadows, fakes_in
from ebbtide.vgpu.virtual_gpu import VirtualGpu


@given(st.lists(st.integers(0, 300), max_size=3))
def test_what_is_small(shape: list[int]) -> None:
    count = torch.Size(shape).numel()
    assert Shadows.small(shape, torch.float32) is (count <= 256)
    assert Shadows.small(shape, torch.int64) is (count <= 1 << 16)
    assert Shadows.small(shape, torch.bool) is (count <= 1 << 16)


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
