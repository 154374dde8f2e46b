"""After the virtual GPU is left, also by an error, nothing of it remains."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import ebbtide.vgpu.api.random
import ebbtide.vgpu.api.streams
from ebbtide.vgpu.virtual_gpu import VirtualGpu

OWNERS: list[Any] = [
    torch,
    torch._C,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.streams,
    torch.cuda.graphs,
    torch.cuda.random,
    torch.cuda.nvtx,
    torch.version,
    torch.backends.cuda,
    torch.accelerator,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.distributed.Backend,
    torch.nn.parallel.distributed,
    torch.multiprocessing,
    torch.utils.data._utils.worker,
    torch.jit,
    torch.autograd,
    torch.autograd.graph,
    torch.Tensor,
    torch.UntypedStorage,
    torch.nn.Module,
    torch.nn.Parameter,
    FakeTensor,
    threading.Thread,
]
# PyTorch itself files these the first time that something is used.
GROWS = {"__annotations__", "__warningregistry__", "__doc__"}


def picture() -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for owner in OWNERS:
        for name, value in vars(owner).items():
            if name not in GROWS:
                found[getattr(owner, "__name__", repr(owner)), name] = id(value)
    return found


def use() -> torch.Tensor:
    """Touch much of the surface."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.cuda.stream(torch.cuda.Stream()), torch.autocast("cuda"):
        loss = model(torch.randn(2, 8, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    torch.cuda.manual_seed_all(3)
    torch.manual_seed(4)
    random.random()
    np.random.rand()
    return loss


def fail() -> None:
    use()
    raise KeyError("the program's own")


@pytest.fixture(autouse=True)
def warmed() -> None:
    """Lazy imports of PyTorch happen before the picture is taken."""
    with VirtualGpu("l4"):
        use()


@pytest.mark.parametrize("action", [use, fail])
def test_every_attribute_is_the_object_it_was(action: Callable[[], Any]) -> None:
    before = picture()
    try:
        with VirtualGpu("l4"):
            assert picture() != before
            action()
    except KeyError:
        pass
    after = picture()
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed == set()


def test_no_module_keeps_a_replacement() -> None:
    module = ModuleType("imported_meanwhile")
    sys.modules["imported_meanwhile"] = module
    originals = torch.cuda.Stream, torch.Generator, torch.save
    try:
        with VirtualGpu("l4"):
            module.Stream = torch.cuda.Stream  # type: ignore[attr-defined]
            module.Generator = torch.Generator  # type: ignore[attr-defined]
            module.write = torch.save  # type: ignore[attr-defined]
            assert module.Stream is ebbtide.vgpu.api.streams.Stream
        assert (module.Stream, module.Generator, module.write) == originals
        assert torch.cuda.Event is not ebbtide.vgpu.api.streams.Event
        assert torch.Generator is not ebbtide.vgpu.api.random.Generator
    finally:
        del sys.modules["imported_meanwhile"]


def train() -> list[bytes]:
    """A step of real training on the CPU: the bits of parameters, loss and moments."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = [value for s in optimizer.state.values() for value in s.values()]
    tensors = [*losses, *model.state_dict().values(), *state]
    assert not any(isinstance(tensor, FakeTensor) for tensor in tensors)
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("action", [use, fail])
def test_a_real_training_step_has_the_same_bits(action: Callable[[], Any]) -> None:
    before = train()
    try:
        with VirtualGpu("l4"):
            action()
    except KeyError:
        pass
    assert train() == before


def test_draws_go_on_where_they_were() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    with VirtualGpu("l4"):
        use()
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]
    assert np.random.rand() == expected[2]


def test_settings_that_stay_are_put_back() -> None:
    with VirtualGpu("l4"):
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.bfloat16)
        assert torch.empty(1).is_cuda
    assert torch.empty(1).device.type == "cpu"
    assert torch.get_default_dtype() is torch.float32


def test_cuda_is_gone_afterwards() -> None:
    with VirtualGpu("l4"):
        assert torch.cuda.is_available()
        kept = torch.zeros(3, device="cuda")
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    assert torch.version.cuda is None
    assert not torch.backends.cudnn.is_available()
    assert kept.shape == (3,)
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        torch.zeros(3, device="cuda")


def test_it_can_be_entered_again_and_again() -> None:
    peaks = set()
    for _ in range(3):
        with VirtualGpu("l4") as virtual:
            use()
            peaks.add(virtual.memory.max_memory_allocated())
    assert len(peaks) == 1


def test_a_real_model_is_left_alone_by_a_fake_copy() -> None:
    from ebbtide.vgpu.api.modules import copy_to_fake

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kinds = {name: type(value) for name, value in model.named_parameters()}
    with VirtualGpu("l4") as virtual:
        twin = copy_to_fake(virtual, model)
        assert twin[1].weight is twin[0].weight
        assert all(isinstance(p, FakeTensor) for p in twin.parameters())
        twin.cuda()
        twin(torch.randn(2, 4, device="cuda")).sum().backward()
        assert twin[0].weight.grad is not None
    assert {name: type(value) for name, value in model.named_parameters()} == kinds
    assert all(value.grad is None for value in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_each_compiler_is_itself_again() -> None:
    # The same wrapper once stood for all of them, and the last name won.
    for name in ("script", "trace", "freeze", "optimize_for_inference"):
        assert getattr(torch.jit, name).__name__ == name
    assert torch.compile.__name__ == "compile"
