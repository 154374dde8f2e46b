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


def test_a_replay_takes_the_captures_time(gpu: VirtualGpu) -> None:
    a = torch.randn(2048, 2048, device="cuda")
    a @ a  # the library's workspace is there before the capture, as people warm up
    graph = torch.cuda.CUDAGraph()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    with torch.cuda.graph(graph):
        for _ in range(10):
            a @ a
    torch.cuda.synchronize()
    marks[0].record()
    graph.replay()
    marks[1].record()
    graph.replay()
    graph.replay()
    marks[2].record()
    once, twice = marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])
    # Ten products of 2048 x 2048 matrices: at least 5.7 ms at the L4's 30 TFLOP/s.
    assert once > 5
    assert 1.9 * once < twice < 2.1 * once
    peak = torch.cuda.max_memory_allocated()
    graph.replay()
    assert torch.cuda.max_memory_allocated() == peak


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
