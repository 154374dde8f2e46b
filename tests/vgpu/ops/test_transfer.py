"""Copies between host and GPU: what is real afterwards, and what is known of it."""

from __future__ import annotations

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.vgpu.tape import SYNC
from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_known_values_come_back(gpu: VirtualGpu) -> None:
    there = torch.arange(6).reshape(2, 3).t().cuda()
    back = there.cpu()
    assert type(back) is torch.Tensor
    assert back.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert back.stride() == there.stride()
    assert gpu.guesses == {}


def test_unknown_values_are_dummies_that_numpy_takes(gpu: VirtualGpu) -> None:
    array = torch.randn(4, 5, device="cuda").cpu().numpy()
    assert array.shape == (4, 5)
    assert np.isfinite(array).all()
    assert gpu.guesses["host-copy"][1] == 1


def test_a_large_copy_stays_fake(gpu: VirtualGpu) -> None:
    back = torch.empty(5 << 20, device="cuda").cpu()
    assert isinstance(back, FakeTensor)
    assert not back.is_cuda
    small = torch.empty(4 << 20, device="cuda").cpu()
    assert not isinstance(small, FakeTensor)


def test_a_copy_to_the_host_waits(gpu: VirtualGpu) -> None:
    data = torch.ones(3, device="cuda")
    before = gpu.tape.kind.count(SYNC)
    data.cpu()
    torch.empty(3).copy_(data)
    assert gpu.tape.kind.count(SYNC) == before + 2
    torch.empty(3).pin_memory().copy_(data, non_blocking=True)
    assert gpu.tape.kind.count(SYNC) == before + 2


def test_into_a_real_tensor_goes_what_is_known(gpu: VirtualGpu) -> None:
    target = torch.zeros(3)
    assert target.copy_(torch.tensor([1.0, 2.0, 3.0], device="cuda")) is target
    assert target.tolist() == [1.0, 2.0, 3.0]
    target.copy_(torch.randn(3, device="cuda"))
    assert target.tolist() == [1.0, 2.0, 3.0]  # nothing is known: nothing is written


def test_no_copy_where_none_is_needed(gpu: VirtualGpu) -> None:
    data = torch.ones(3, device="cuda")
    rows = len(gpu.tape.alloc_bytes)
    assert data.to("cuda") is data
    assert data.cuda() is data
    assert len(gpu.tape.alloc_bytes) == rows
    assert data.to("cuda", copy=True) is not data


def test_a_conversion_on_the_way(gpu: VirtualGpu) -> None:
    data = torch.ones(3).to("cuda", torch.float16)
    assert (data.dtype, data.is_cuda) == (torch.float16, True)
    # PyTorch converts on the GPU after the copy; both are there for a moment.
    assert data.cpu().float().tolist() == [1.0, 1.0, 1.0]


def test_the_host_cannot_be_mixed_in(gpu: VirtualGpu) -> None:
    there = torch.ones(3, device="cuda")
    assert (there + torch.tensor(1.0)).is_cuda  # a number in a tensor may
    try:
        there + torch.ones(3)
    except RuntimeError as error:
        assert "same device" in str(error)
    else:
        raise AssertionError("two devices were mixed")
