"""Everything that a model returns, added up."""

from __future__ import annotations

import pytest
import torch

from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.sums import sum_of


def test_all_that_depends_on_parameters_is_added() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert sum_of(weight).item() == 2
    outputs = (weight * 2, [weight], {"a": weight.half(), "b": torch.ones(9)}, "x", None)
    made = sum_of(outputs)
    assert (made.item(), made.dtype) == (8, torch.float32)
    made.backward()
    assert weight.grad is not None and weight.grad.tolist() == [4, 4]


def test_the_sum_is_listed_where_a_virtual_gpu_is_on() -> None:
    with VirtualGpu("t4") as gpu:
        sum_of(torch.ones(2, device="cuda", requires_grad=True))
    text, count = gpu.guesses["loss"]
    assert "sum of its outputs" in text and count == 1


@pytest.mark.parametrize("outputs", [{"a": torch.ones(2)}, (), torch.ones(2, dtype=torch.long)])
def test_nothing_to_train(outputs: object) -> None:
    with pytest.raises(ValueError, match="nothing that depends on its parameters"):
        sum_of(outputs)
