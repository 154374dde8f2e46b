"""What Python asks of fake tensors: printing, NumPy, addresses, `.data`, pinned memory."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_known_values_print_like_pytorchs(gpu: VirtualGpu) -> None:
    x = torch.tensor([1, 2, 3], device="cuda")
    assert repr(x) == "tensor([1, 2, 3], device='cuda:0')"
    assert x.tolist() == [1, 2, 3]
    assert f"{x[1]:03d}" == "002"
    assert f"{torch.tensor(2.5, device='cuda'):.2f}" == "2.50"
    assert "{:.1f}".format(torch.tensor(2.5, device="cuda")) == "2.5"
    assert str(torch.zeros(0, device="cuda")).startswith("tensor([]")


def test_unknown_values_print_as_dummies_and_are_listed(gpu: VirtualGpu) -> None:
    weight = torch.nn.Linear(2, 2).cuda().weight
    text = repr(weight)
    assert text.startswith("Parameter containing:\ntensor([[1., 1.],")
    assert text.endswith("device='cuda:0', requires_grad=True)")
    assert gpu.guesses["value"][1] == 1
    large = torch.randn(100, 100, device="cuda")
    assert repr(large) == "tensor(..., device='cuda:0', size=(100, 100), dtype=torch.float32)"
    assert "grad_fn=<MulBackward0>" in repr(weight * 2)


def test_numpy_needs_the_host_as_in_pytorch(gpu: VirtualGpu) -> None:
    x = torch.tensor([1.5, 2.5], device="cuda")
    with pytest.raises(TypeError, match="Use Tensor.cpu"):
        x.numpy()
    with pytest.raises(TypeError, match="Use Tensor.cpu"):
        np.asarray(x)
    assert x.cpu().numpy().tolist() == [1.5, 2.5]
    assert x.numpy(force=True).tolist() == [1.5, 2.5]
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert isinstance(parameter, FakeTensor)
    with pytest.raises(RuntimeError, match="requires grad"):
        parameter.numpy()
    assert parameter.detach().numpy().shape == (2,)
    assert np.asarray(parameter.detach(), dtype=np.float64).dtype == np.float64


def test_python_numbers(gpu: VirtualGpu) -> None:
    two = torch.tensor(2, device="cuda")
    assert int(two) == 2 and float(two) == 2.0 and bool(two) and list(range(5))[two] == 2
    total = torch.randn(3, device="cuda").sum()
    assert float(total) == 1.0
    assert gpu.guesses["item"][1] == 1


def test_addresses_are_stable_and_tell_storages_apart(gpu: VirtualGpu) -> None:
    x, y = torch.empty(1000, device="cuda"), torch.empty(1000, device="cuda")
    assert x.data_ptr() == x.data_ptr() != y.data_ptr()
    assert x.data_ptr() % 512 == 0
    assert x[10:].data_ptr() == x.data_ptr() + 40
    assert x.view(10, 100).untyped_storage().data_ptr() == x.data_ptr()
    assert torch.empty(0, device="cuda").data_ptr() == 0
    real = torch.empty(4)
    assert real.untyped_storage().data_ptr() == real.data_ptr()


def test_data_can_be_replaced(gpu: VirtualGpu) -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 4))
    assert parameter.device.type == "cpu"
    parameter.data = torch.empty(4, 4, device="cuda", dtype=torch.float16)
    assert parameter.is_cuda and parameter.dtype is torch.float16
    assert parameter.device == torch.device("cuda", 0) and parameter.requires_grad
    parameter.data = torch.zeros(2)
    assert (parameter.device.type, parameter.shape) == ("cpu", (2,))
    parameter.data.add_(1)
    (parameter.cuda() * 2).sum().backward()
    assert parameter.grad is not None and parameter.grad.device.type == "cpu"


def test_data_of_a_real_tensor_may_become_fake(gpu: VirtualGpu) -> None:
    buffer = torch.arange(4.0)
    same = buffer
    buffer.data = buffer.data.cuda()
    assert same is buffer and isinstance(buffer, FakeTensor) and buffer.is_cuda
    assert (buffer + torch.ones(4, device="cuda")).is_cuda
    real = torch.zeros(3)
    real.data = torch.ones(3)
    assert real.tolist() == [1.0, 1.0, 1.0] and not isinstance(real, FakeTensor)


def test_replaced_data_frees_what_it_replaces(gpu: VirtualGpu) -> None:
    parameter = torch.nn.Parameter(torch.empty(1 << 20)).cuda()
    parameter = torch.nn.Parameter(parameter.detach())
    parameter.data = torch.empty(0, device="cuda")
    assert torch.cuda.memory_allocated() == 0


def test_copies_are_deep(gpu: VirtualGpu) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, device="cuda"))
    parameter.note = {"kept": [1]}  # type: ignore[attr-defined]
    (parameter * 2).sum().backward()
    twin = copy.deepcopy([parameter, parameter])
    assert twin[0] is twin[1] is not parameter
    assert isinstance(twin[0], torch.nn.Parameter) and twin[0].requires_grad
    assert twin[0].grad is not None and twin[0].grad is not parameter.grad
    assert twin[0].note == {"kept": [1]} and twin[0].note is not parameter.note
    assert twin[0].data_ptr() != parameter.data_ptr()
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(parameter * 2)


def test_pickling_keeps_the_shape(gpu: VirtualGpu) -> None:
    x = torch.empty(3, 4, device="cuda", dtype=torch.bfloat16).t()
    again = pickle.loads(pickle.dumps(x))
    assert (again.shape, again.stride(), again.dtype) == (x.shape, x.stride(), x.dtype)
    assert again.device == x.device
    parameter = pickle.loads(pickle.dumps(torch.nn.Parameter(torch.zeros(2), False)))
    assert isinstance(parameter, torch.nn.Parameter) and not parameter.requires_grad


def test_pinned_memory(gpu: VirtualGpu) -> None:
    x = torch.arange(3)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned()
    assert pinned[1:].is_pinned() and pinned.pin_memory() is pinned
    pinned[0] = 9
    assert x.tolist() == [0, 1, 2]
    assert torch.empty(2, 2, pin_memory=True).is_pinned()
    assert torch.zeros(2, pin_memory=True).is_pinned()
    assert pinned.to("cuda", non_blocking=True).tolist() == [9, 1, 2]
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.empty(2, device="cuda").pin_memory()
    assert not torch.empty(2, device="cuda").is_pinned()


def test_types_named_after_cuda(gpu: VirtualGpu) -> None:
    x = torch.cuda.FloatTensor(2, 3)
    assert (x.shape, x.dtype, x.is_cuda) == ((2, 3), torch.float32, True)
    assert torch.cuda.LongTensor([3, 4]).tolist() == [3, 4]
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert not isinstance(torch.empty(1), torch.cuda.FloatTensor)
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.type("torch.cuda.HalfTensor").dtype is torch.float16
    assert x.type(torch.cuda.DoubleTensor).dtype is torch.float64


def test_default_devices(gpu: VirtualGpu) -> None:
    torch.set_default_device("cuda")
    x = torch.randn(3, 3)
    assert x.is_cuda and torch.nn.Linear(2, 2).weight.is_cuda
    assert "1." in repr(x.sum())
    torch.set_default_device(None)
    assert not torch.empty(1).is_cuda
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
    torch.set_default_tensor_type(torch.cuda.HalfTensor)
    assert torch.empty(1).is_cuda and torch.empty(1).dtype is torch.float16


def test_moving(gpu: VirtualGpu) -> None:
    x = torch.arange(4)
    for moved in (x.cuda(), x.cuda(0), x.to("cuda"), x.to(0), x.to(torch.device("cuda", 0))):
        assert moved.device == torch.device("cuda", 0)
        assert moved.tolist() == [0, 1, 2, 3]
    assert x.cuda().get_device() == 0 and x.get_device() == -1
    assert x.cuda().to("cpu").tolist() == [0, 1, 2, 3]
    assert x.cuda().share_memory_().is_shared()
    assert torch.from_numpy(np.ones(3)).cuda().dtype is torch.float64


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2).to("cuda:1"),
        lambda: torch.zeros(2, device="cuda").to("cuda:1"),
        lambda: torch.zeros(2, device="cuda:3"),
        lambda: torch.nn.Linear(2, 2).to("cuda:1"),
        lambda: torch.tensor([1], device="cuda:1"),
    ],
)
def test_another_device_is_refused(gpu: VirtualGpu, make: object) -> None:
    with pytest.raises(RuntimeError, match=r"cuda:\d does not"):
        make()  # type: ignore[operator]


def test_an_emptied_storage_holds_no_memory(gpu: VirtualGpu) -> None:
    data = torch.zeros(1 << 20, device="cuda")
    storage = data.untyped_storage()
    before = gpu.memory.memory_allocated()
    storage.resize_(0)
    assert gpu.memory.memory_allocated() == before - 4 * (1 << 20)
    storage.resize_(0)
    storage.resize_(8 << 20)
    assert gpu.memory.memory_allocated() == before + 4 * (1 << 20)
    storage.resize_(4 << 20)
    assert gpu.memory.memory_allocated() == before
    host = torch.zeros(4).untyped_storage()
    host.resize_(64)
    assert gpu.memory.memory_allocated() == before
    del data, storage
    assert gpu.memory.memory_allocated() == before - 4 * (1 << 20)
