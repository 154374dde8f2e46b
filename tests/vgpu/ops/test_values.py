"""What Python is told of values on the GPU, and GradScaler's own two operations."""

from __future__ import annotations

import pytest
import torch

from ebbtide.vgpu.tape import SYNC
from ebbtide.vgpu.virtual_gpu import VirtualGpu


@pytest.mark.parametrize(
    "ask", [torch.Tensor.item, bool, float, int, lambda t: f"{t:.1f}", lambda t: t.tolist()]
)
def test_reading_a_value_waits(gpu: VirtualGpu, ask: object) -> None:
    known = torch.tensor(2.0, device="cuda")
    before = gpu.tape.kind.count(SYNC)
    ask(known)  # type: ignore[operator]
    expected = 0 if getattr(ask, "__name__", "") == "tolist" else 1
    assert gpu.tape.kind.count(SYNC) - before <= 1
    assert gpu.tape.kind.count(SYNC) - before >= expected - 1
    assert gpu.guesses == {}


def test_equality(gpu: VirtualGpu) -> None:
    one = torch.tensor([1, 2], device="cuda")
    assert torch.equal(one, torch.tensor([1, 2], device="cuda"))
    assert not torch.equal(one, torch.tensor([1, 3], device="cuda"))
    assert gpu.guesses == {}
    unknown = torch.randn(3, device="cuda")
    assert torch.equal(unknown, unknown + 1)
    assert not torch.equal(unknown, unknown[:2])
    assert gpu.guesses["equal"][1] == 2


def test_gradients_are_taken_as_finite(gpu: VirtualGpu) -> None:
    weight = torch.ones(4, device="cuda", requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cuda")
    scale = scaler.get_scale()
    for _ in range(3):
        scaler.scale((weight * torch.randn(4, device="cuda")).sum()).backward()
        scaler.unscale_(optimizer)
        assert scaler.step(optimizer) is None
        scaler.update()
    assert scaler.get_scale() == scale
    names = {gpu.tape.names.items[number] for number in gpu.tape.op_name}
    assert "aten::_amp_foreach_non_finite_check_and_unscale_" in names
    assert "aten::_amp_update_scale_" in names


def test_a_condition_on_a_loss_is_listed(gpu: VirtualGpu) -> None:
    loss = torch.randn(8, 8, device="cuda").sum()
    if loss > 100:
        pytest.fail("an unknown comparison is answered with no")
    assert gpu.guesses["item"][1] == 1


def test_a_tensor_of_numbers_on_the_gpu(gpu: VirtualGpu) -> None:
    lengths = torch.tensor([3, 7], device="cuda")
    assert torch.tensor([lengths[0], lengths.max()]).tolist() == [3, 7]
    assert torch.tensor([lengths[1] + 1], device="cuda").tolist() == [8]
    assert torch.tensor([[lengths[0]], [5]]).tolist() == [[3], [5]]
    assert gpu.guesses == {}
    loss = torch.randn(9, device="cuda").sum()
    assert torch.tensor([loss]).tolist() == [1.0]
    assert "item" in gpu.guesses
