"""CUDA graphs run eagerly."""

from __future__ import annotations

import pytest
import torch

from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_capture_and_replay(gpu: VirtualGpu) -> None:
    model = torch.nn.Linear(8, 8).cuda()
    static = torch.zeros(4, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.replay()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        out = model(static)
    assert not torch.cuda.is_current_stream_capturing()
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        static.copy_(torch.ones(4, 8))
        graph.replay()
    assert torch.cuda.memory_allocated() == held
    assert out.shape == (4, 8)
    assert gpu.guesses["cuda-graph"][1] == 1
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other, pool=graph.pool()):
        model(static)
    assert other.pool() == graph.pool() != torch.cuda.graph_pool_handle()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.replay()


def test_captures_do_not_nest(gpu: VirtualGpu) -> None:
    outer, inner = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="inside one another"):
        with torch.cuda.graph(outer), torch.cuda.graph(inner):
            pass


def test_graphed_callables(gpu: VirtualGpu) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
    sample = torch.randn(4, 8, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    loss = graphed(torch.randn(4, 8, device="cuda")).sum()
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
