"""Compilers are taken as eager, and said so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_a_compiled_module_is_the_module(gpu: VirtualGpu) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).cuda()
    compiled = torch.compile(model, mode="max-autotune", fullgraph=True)
    assert compiled._orig_mod is model
    assert next(iter(compiled.state_dict())) == "_orig_mod.0.weight"
    assert compiled(torch.randn(2, 3, device="cuda")).shape == (2, 3)
    compiled.eval()
    assert not model.training and not compiled.training
    compiled.train()
    assert model[1].training
    compiled.label = "x"
    assert model.label == "x" and compiled.label == "x"
    assert len(compiled) == 2
    assert [p is q for p, q in zip(compiled.parameters(), model.parameters(), strict=True)]
    assert gpu.guesses["compile"][1] == 1


def test_functions_decorators_and_methods(gpu: VirtualGpu) -> None:
    def double(x: int) -> int:
        return 2 * x

    assert torch.compile(double) is double
    assert torch.compile(dynamic=True)(double)(4) == 8

    @torch.compile
    def triple(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    assert triple(torch.ones(2, device="cuda")).tolist() == [3.0, 3.0]
    layer = nn.Linear(2, 2).cuda()
    layer.compile(mode="reduce-overhead")
    assert layer(torch.ones(1, 2, device="cuda")).is_cuda
    assert gpu.guesses["compile"][1] == 4


def test_torchscript(gpu: VirtualGpu) -> None:
    model = nn.Linear(2, 2).cuda()
    assert torch.jit.script(model) is model
    assert torch.jit.trace(model, torch.ones(1, 2, device="cuda")) is model
    assert torch.jit.freeze(torch.jit.script(model.eval())) is model

    @torch.jit.script
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert add(torch.zeros(2, device="cuda")).tolist() == [1.0, 1.0]
    assert "script" in gpu.guesses


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_is_taken_as_fused(gpu: VirtualGpu) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 1024, 1024, device="cuda")
    q = torch.randn(2, 4, 1024, 64, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = torch.compile(flex_attention)(q, q, q, block_mask=mask)
    # The scores alone would be 32 MiB.
    assert torch.cuda.max_memory_allocated() - before < 8 << 20
    out.sum().backward()
    assert q.grad is not None and q.grad.shape == q.shape
    assert "higher-order" in gpu.guesses


def test_the_compiler_can_be_reset(gpu: VirtualGpu) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    assert gpu.guesses.keys() <= {"compile"}
