"""Sizes that depend on values are exact where the values are known."""

from __future__ import annotations

import pytest
import torch

from ebbtide.vgpu.virtual_gpu import VirtualGpu


@pytest.mark.parametrize("values", [[0, 2, 1, 2], [5], [3, 3, 3]])
def test_unique_of_known_values(values: list[int]) -> None:
    real = torch.tensor(values)
    with VirtualGpu("l4") as gpu:
        fake = real.cuda()
        assert fake.unique().tolist() == sorted(set(values))
        found, inverse, counts = fake.unique(return_inverse=True, return_counts=True)
        assert found[inverse].tolist() == values
        assert counts.sum().item() == len(values)
        assert torch.unique_consecutive(fake).shape == torch.unique_consecutive(real).shape
        assert "unique" not in gpu.guesses


def test_unique_of_unknown_values_is_bound_from_above() -> None:
    with VirtualGpu("l4") as gpu:
        assert torch.randn(300, device="cuda").unique().shape == (300,)
        assert gpu.guesses["unique"][1] == 1


def test_masks_of_known_values() -> None:
    with VirtualGpu("l4") as gpu:
        lengths = torch.tensor([3, 2, 5], device="cuda")
        mask = torch.arange(5, device="cuda")[None] < lengths[:, None]
        assert torch.randn(3, 5, 2, device="cuda")[mask].shape == (10, 2)
        assert mask.nonzero().shape == (10, 2)
        assert lengths.bincount(minlength=7).tolist() == [0, 0, 1, 1, 0, 1, 0]
        assert not {"nonzero", "mask", "bincount"} & set(gpu.guesses)
