"""The dispatch mode: what becomes fake, what is written, exact lists of allocations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.vgpu.tape import OP, WORKSPACE
from ebbtide.vgpu.virtual_gpu import VirtualGpu

Sizes = Callable[[], list[int]]
Names = Callable[[], list[str]]
# cuBLAS on compute capability 8.9: :4096:2:16:8 = 8,519,680 bytes (kernels/blas.py).
BATCH, INPUTS, OUTPUTS = 32, 64, 16


def test_a_step_of_linear_allocates_exactly_this(gpu: VirtualGpu, allocated: Sizes) -> None:
    layer = nn.Linear(INPUTS, OUTPUTS).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    weight, bias = 4 * INPUTS * OUTPUTS, 4 * OUTPUTS
    assert allocated() == [weight, bias]
    data = torch.randn(BATCH, INPUTS, device="cuda")
    assert allocated() == [4 * BATCH * INPUTS]
    out = layer(data)
    forward = allocated()
    assert forward[0] == 4 * BATCH * OUTPUTS
    forward_library = [size for size in forward[1:] if size]
    loss = out.sum()
    assert allocated()[0] == 4
    loss.backward()
    backward = allocated()
    # ones_like(loss) expanded, then weight's gradient by a product, bias's by a sum.
    assert backward[0] == 4
    assert weight in backward
    assert bias in backward
    optimizer.step()
    # Momentum begins as a copy of each gradient.
    assert allocated() == [weight, bias]
    rows = [i for i, c in enumerate(gpu.tape.alloc_category) if c == WORKSPACE]
    assert sum(forward_library) <= sum(gpu.tape.alloc_bytes[row] for row in rows)


def test_workspaces_are_held_once_for_forward_and_once_for_backward(gpu: VirtualGpu) -> None:
    layer = nn.Linear(INPUTS, OUTPUTS, bias=False).cuda()
    for _ in range(3):
        layer(torch.randn(BATCH, INPUTS, device="cuda", requires_grad=True)).sum().backward()
    held = [size for size in gpu.tape.alloc_bytes if size > 1 << 20]
    # The autograd engine has a thread and so a handle of its own.
    assert len(held) == 2
    assert held[0] == held[1]
    before = gpu.memory.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    assert before - gpu.memory.memory_allocated() == 2 * held[0]


def test_a_layer_of_relu_and_dropout(gpu: VirtualGpu, allocated: Sizes, op_names: Names) -> None:
    data = torch.randn(1000, device="cuda", requires_grad=True)
    allocated(), op_names()
    out = nn.functional.dropout(torch.relu(data), 0.5)
    # relu's output; dropout's output and its mask of one byte an element.
    assert allocated() == [4000, 4000, 1000]
    assert op_names() == ["relu", "native_dropout"]
    out.sum().backward()
    assert op_names() == [
        "sum", "ones_like", "native_dropout_backward", "threshold_backward"
    ]  # fmt: skip


def test_batch_norm_keeps_cudnns_reserve(gpu: VirtualGpu, op_names: Names) -> None:
    layer = nn.BatchNorm2d(8).cuda()
    op_names()
    layer(torch.randn(4, 8, 6, 6, device="cuda"))
    assert "cudnn_batch_norm" in op_names()


def test_cpu_tensors_stay_real(gpu: VirtualGpu, op_names: Names) -> None:
    op_names()
    data = torch.arange(5) * 2
    assert type(data) is torch.Tensor
    assert data.tolist() == [0, 2, 4, 6, 8]
    assert op_names() == []
    assert isinstance(data.cuda(), FakeTensor)


def test_a_large_empty_cpu_tensor_is_not_made(gpu: VirtualGpu) -> None:
    assert isinstance(torch.empty(1 << 30), FakeTensor)
    assert not isinstance(torch.empty(1 << 10), FakeTensor)
    assert gpu.memory.memory_allocated() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, device="cuda"),
        lambda: torch.tensor([1, 2, 3], device="cuda"),
        lambda: torch.arange(3, device="cuda:0"),
        lambda: torch.ones(3).to("cuda"),
        lambda: torch.ones(3).cuda(),
        lambda: torch.ones(3).to(torch.empty(1, device="cuda")),
        lambda: torch.empty(3, device=torch.device("cuda", 0)),
    ],
)
def test_every_way_to_the_gpu(gpu: VirtualGpu, make: Callable[[], torch.Tensor]) -> None:
    made = make()
    assert made.is_cuda
    assert made.device == torch.device("cuda", 0)
    assert gpu.memory.memory_allocated() == 512


def test_views_launch_nothing(gpu: VirtualGpu, op_names: Names, allocated: Sizes) -> None:
    data = torch.empty(4, 6, device="cuda")
    op_names(), allocated()
    for view in (data.t(), data[1:], data.view(24), data[None], data.expand(2, 4, 6), data[0, 1]):
        assert view.untyped_storage()._cdata == data.untyped_storage()._cdata
    assert op_names() == []
    assert allocated() == []


def test_the_cache_writes_the_same_rows(gpu: VirtualGpu) -> None:
    def step() -> list[tuple[int, ...]]:
        tape = gpu.tape
        start = len(tape.kind)
        ops, rows = len(tape.op_name), len(tape.alloc_bytes)
        data = torch.randn(8, 8, device="cuda")
        torch.softmax(data @ data, -1).sort()
        del data
        return [
            *(tuple(v) for v in (tape.kind[start:], tape.op_name[ops:], tape.alloc_bytes[rows:]))
        ]

    step()  # workspaces come with the first product
    first = step()
    gpu.mode.plans.clear()
    assert step() == first == step()


def test_an_operation_belongs_to_its_allocations(gpu: VirtualGpu) -> None:
    data = torch.randn(8, device="cuda")
    out = data + 1
    row = gpu.mode.storages.row_of(out)
    assert row is not None
    op = gpu.tape.alloc_op[row]
    assert gpu.tape.names.items[gpu.tape.op_name[op]] == "aten::add"
    opened = [a for k, a in zip(gpu.tape.kind, gpu.tape.arg, strict=True) if k == OP]
    assert opened == list(range(len(gpu.tape.op_name)))


def test_the_stream_is_written(gpu: VirtualGpu) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.ones(3, device="cuda")
    torch.ones(3, device="cuda")
    assert gpu.tape.op_stream == [side.stream_id, 0]
    assert gpu.tape.alloc_stream == [side.stream_id, 0]


def test_an_error_in_forward_is_the_programs(gpu: VirtualGpu) -> None:
    with pytest.raises(RuntimeError, match="shape '\\[5\\]' is invalid"):
        torch.ones(4, device="cuda").view(5)
    assert (torch.ones(4, device="cuda") + 1).is_cuda


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, data: torch.Tensor) -> torch.Tensor:
        return data * 1

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")


def test_an_error_in_backward_is_the_programs(gpu: VirtualGpu) -> None:
    data = torch.ones(4, device="cuda", requires_grad=True)
    with pytest.raises(ValueError, match="on purpose"):
        _Fails.apply(data).sum().backward()
    assert not gpu.places.in_backward
    (data * 2).sum().backward()
    assert data.grad is not None


def test_handlers_can_make_tensors_and_views(gpu: VirtualGpu) -> None:
    like = torch.empty(1, device="cuda")
    made = gpu.mode.new_tensor((4, 3), like, torch.half, span=(8, 48), category=WORKSPACE)
    view = gpu.mode.view_of(made, (2, 2), 5)
    assert (tuple(made.shape), made.stride(), made.dtype) == ((4, 3), (3, 1), torch.half)
    assert (tuple(view.shape), view.storage_offset()) == ((2, 2), 5)
    row = gpu.mode.storages.row_of(view)
    assert row == gpu.mode.storages.row_of(made)
    tape = gpu.tape
    assert row is not None
    assert (tape.alloc_low[row], tape.alloc_bytes[row], tape.alloc_high[row]) == (8, 24, 48)
    assert tape.alloc_category[row] == WORKSPACE


def test_unhashable_arguments_are_run_each_time(gpu: VirtualGpu) -> None:
    sparse = torch.eye(3, device="cuda").to_sparse()
    assert sparse.layout is torch.sparse_coo
    assert gpu.mode.plans is not None
    assert (sparse + sparse).layout is torch.sparse_coo
