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


@pytest.mark.parametrize(
    ("shape", "where"),
    [((64, 32), (slice(None),)), ((4, 8, 16), (slice(None), slice(None)))],
)
def test_a_number_put_under_a_mask_is_a_fill(
    shape: tuple[int, ...], where: tuple[slice, ...]
) -> None:
    with VirtualGpu("l4") as gpu:
        x = torch.randn(shape, device="cuda")
        mask = x > 0
        rows = mask.flatten(1).any(1)
        last = mask.reshape(-1, shape[-1]).any(0)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        x[mask] = 0
        x[rows] = -1.0
        x[(*where, last)] = 2.0
        assert torch.cuda.max_memory_allocated() == before
        assert "nonzero" not in gpu.guesses
        x[mask] = torch.zeros((), device="cuda")  # on the GPU: indices are found
        assert "nonzero" in gpu.guesses


def test_the_fill_writes_known_values() -> None:
    with VirtualGpu("l4"):
        x = torch.tensor([1, -2, 3], device="cuda")
        x[x < 0] = 7
        assert x.tolist() == [1, 7, 3]
