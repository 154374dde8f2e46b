"""Module and source line of every operation, in forward, backward and recomputation."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ebbtide.vgpu.places import ENTERED
from ebbtide.vgpu.virtual_gpu import VirtualGpu

Names = Callable[[], list[str]]


class Block(nn.Module):
    """A layer inside a model."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(data)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            data = block(data)
        return data.sum()


def _places(gpu: VirtualGpu, start: int = 0) -> list[tuple[str, str]]:
    tape = gpu.tape
    return [
        (tape.names.items[name].removeprefix("aten::"), tape.modules.items[module])
        for name, module in zip(tape.op_name[start:], tape.op_module[start:], strict=True)
    ]


def test_forward_by_hooks(gpu: VirtualGpu) -> None:
    model, data = Model().cuda(), torch.randn(2, 4, device="cuda")
    start = len(gpu.tape.op_name)
    model(data)
    assert _places(gpu, start) == [
        ("addmm", "blocks.0.up"), ("tanh", "blocks.0"), ("addmm", "blocks.0.down"),
        ("addmm", "blocks.1.up"), ("tanh", "blocks.1"), ("addmm", "blocks.1.down"),
        ("sum", "Model"),
    ]  # fmt: skip


def test_backward_by_the_nodes_of_forward(gpu: VirtualGpu) -> None:
    model, data = Model().cuda(), torch.randn(2, 4, device="cuda")
    loss = model(data)
    start = len(gpu.tape.op_name)
    loss.backward()
    backward = _places(gpu, start)
    assert ("tanh_backward", "blocks.1") in backward
    assert ("tanh_backward", "blocks.0") in backward
    products = [module for name, module in backward if name == "mm"]
    # The gradient of weight and data for all but the first layer, last layer first.
    assert products == [
        "blocks.1.down", "blocks.1.down", "blocks.1.up", "blocks.1.up",
        "blocks.0.down", "blocks.0.down", "blocks.0.up",
    ]  # fmt: skip


def test_recomputation_is_the_modules_own(gpu: VirtualGpu) -> None:
    model, data = Model().cuda(), torch.randn(2, 4, device="cuda", requires_grad=True)
    out = checkpoint(model.blocks[0], data, use_reentrant=False)
    start = len(gpu.tape.op_name)
    out.sum().backward()
    again = [place for place in _places(gpu, start) if place[0] in ("addmm", "tanh")]
    assert [name for name, _ in again][:2] == ["addmm", "tanh"]
    assert {module for _, module in again} <= {"up", "Block", "down"}


def test_lines_are_the_programs(gpu: VirtualGpu) -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    torch.ones(3, device="cuda")
    text = gpu.tape.lines.items[gpu.tape.op_line[-1]]
    assert text == f"tests/vgpu/test_places.py:{line} in test_lines_are_the_programs"


def test_lines_inside_modules_are_those_of_forward(gpu: VirtualGpu) -> None:
    Model().cuda()(torch.randn(2, 4, device="cuda"))
    texts = {gpu.tape.lines.items[number] for number in gpu.tape.op_line}
    assert any(text.endswith(" in forward") and "test_places.py" in text for text in texts)
    assert not any("torch/nn" in text for text in texts)


def test_operations_outside_modules_have_none(gpu: VirtualGpu) -> None:
    torch.ones(3, device="cuda") + 1
    assert {module for _, module in _places(gpu)} == {""}


def test_a_module_made_on_the_way_gets_a_name(gpu: VirtualGpu) -> None:
    class Late(nn.Module):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return nn.ReLU()(data)

    Late()(torch.ones(3, device="cuda"))
    assert _places(gpu)[-1] == ("relu", "Late/ReLU")


def test_roots_are_told_of(gpu: VirtualGpu) -> None:
    model, seen = Model().cuda(), []
    gpu.places.on_root = lambda module, output: seen.append((module, output is ENTERED))
    model(torch.randn(2, 4, device="cuda"))
    assert [entered for _, entered in seen] == [True, False]
    assert all(module is model for module, _ in seen)
    assert gpu.places.roots == (model,)


def test_a_dropped_module_is_let_go(gpu: VirtualGpu) -> None:
    model = Model().cuda()
    model(torch.randn(2, 4, device="cuda"))
    assert gpu.mode.storages.live_bytes > 0
    del model
    gc.collect()
    assert gpu.places.roots == ()
    assert gpu.places._paths == {}
    assert gpu.mode.storages.live_bytes == 0


def test_an_error_in_a_module_leaves_it(gpu: VirtualGpu) -> None:
    class Bad(nn.Module):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            raise ValueError("on purpose")

    try:
        Bad()(torch.ones(3, device="cuda"))
    except ValueError:
        torch.ones(3, device="cuda")
    assert _places(gpu)[-1][1] == ""


def test_the_engine_is_told_of_once(gpu: VirtualGpu) -> None:
    calls: list[bool] = []
    gpu.places.on_engine = calls.append

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
            return data * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = torch.ones(3, device="cuda", requires_grad=True)
                torch.autograd.grad(inner.sum(), inner)
            return gradient

    data = torch.ones(3, device="cuda", requires_grad=True)
    Inner.apply(data).sum().backward()
    assert calls == [True, False]
    torch.autograd.grad((data * 2).sum(), data)
    assert calls == [True, False, True, False]


def test_what_forward_filed_can_be_forgotten(gpu: VirtualGpu) -> None:
    model = Model().cuda()
    loss = model(torch.randn(2, 4, device="cuda"))
    assert gpu.places._forward
    gpu.places.forget()
    start = len(gpu.tape.op_name)
    loss.backward()
    assert {module for _, module in _places(gpu, start)} == {""}
