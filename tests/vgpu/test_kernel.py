"""Kernels: names, costs and temporaries of one operation on one GPU."""

from __future__ import annotations

import pytest
import torch

from ebbtide.gpus import find
from ebbtide.vgpu.clock import seconds_of
from ebbtide.vgpu.costs import Cost
from ebbtide.vgpu.kernel import Kernel, KernelModel, meta_of
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tape import Names
from ebbtide.vgpu.tensors import TensorMeta

L4 = find("l4")


@pytest.fixture
def model() -> KernelModel:
    context = KernelContext(capability=(8, 9), torch_version=(2, 13), sm_count=58)
    return KernelModel(L4, context, Names())


def _describe(model: KernelModel, name: str, *tensors: torch.Tensor, out: object = ()) -> Kernel:
    return model.describe(name, tensors, {}, out)


def test_metadata_of_nested_arguments() -> None:
    tensor = torch.empty(2, 3, dtype=torch.bfloat16).t()
    meta = TensorMeta((3, 2), (1, 3), "bfloat16", 2)
    assert meta_of(tensor) == meta
    assert meta_of([tensor, (1, None, "x")]) == (meta, (1, None, "x"))


def test_metadata_of_a_sparse_tensor_is_that_of_its_values() -> None:
    indices, values = torch.tensor([[0, 1], [1, 2]]), torch.ones(2)
    sparse = torch.sparse_coo_tensor(indices, values, (1000, 1000), check_invariants=True)
    assert meta_of(sparse).shape == (2,)


def test_a_product(model: KernelModel) -> None:
    a, b = torch.empty(64, 32, dtype=torch.half), torch.empty(32, 16, dtype=torch.half)
    kernel = _describe(model, "mm", a, b, out=torch.empty(64, 16, dtype=torch.half))
    assert kernel.flops == 2 * 64 * 32 * 16
    assert kernel.moved_bytes == 2 * (64 * 32 + 32 * 16 + 64 * 16)
    assert model._names.items[kernel.name] == "aten::mm"
    assert model._names.items[kernel.rate] == "float16"
    assert kernel.seconds == seconds_of(L4, Cost(kernel.flops, kernel.moved_bytes, "float16"))
    assert [workspace.library for workspace in kernel.workspaces] != []


def test_an_elementwise_operation_has_no_workspace(model: KernelModel) -> None:
    a = torch.empty(100)
    kernel = _describe(model, "add", a, a, out=torch.empty(100))
    assert (kernel.flops, kernel.moved_bytes) == (0, 1200)
    assert (kernel.workspaces, kernel.scratch) == ((), ())


def test_temporaries_come_from_the_rules(model: KernelModel) -> None:
    a = torch.empty(100_000)
    outputs = (torch.empty(100_000), torch.empty(100_000, dtype=torch.int64))
    kernel = model.describe("sort", (a, -1, False), {}, outputs)
    assert sum(item.likely for item in kernel.scratch) > 0


def test_keyword_arguments_count(model: KernelModel) -> None:
    a = torch.empty(8, 8)
    plain = model.describe("addmm", (a[0], a, a), {}, a)
    without = model.describe("addmm", (a[0], a, a), {"beta": 0}, a)
    assert plain.flops == without.flops
    assert isinstance(without.workspaces, tuple)


def test_names_are_shared_between_kernels(model: KernelModel) -> None:
    a = torch.empty(8)
    first, second = (_describe(model, "add", a, a, out=a) for _ in range(2))
    assert first.name == second.name
    assert first.rate == second.rate
