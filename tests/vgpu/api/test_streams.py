"""Streams and events on the virtual clock."""

from __future__ import annotations

import pytest
import torch

from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_the_default_stream_is_current(gpu: VirtualGpu) -> None:
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_stream().cuda_stream == 0
    assert torch.cuda.current_stream().device == torch.device("cuda", 0)
    assert hash(torch.cuda.current_stream()) == hash(torch.cuda.default_stream())


def test_streams_are_numbered_as_pytorch_numbers_them(gpu: VirtualGpu) -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    # c10/cuda/CUDAStream.cpp: index, then the pool in four bits, then a set bit.
    assert [stream.stream_id for stream in streams[:3]] == [3, 35, 67]
    assert streams[32] == streams[0]
    assert len({stream.cuda_stream for stream in streams}) == 32
    high = torch.cuda.Stream(priority=-1)
    assert (high.stream_id, high.priority) == (5, -1)
    assert torch.cuda.Stream.priority_range() == (0, -3)
    assert isinstance(high, torch.cuda.Stream) and isinstance(high, torch.Stream)
    assert high != 5


def test_contexts_choose_the_stream(gpu: VirtualGpu) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        assert torch.cuda.current_stream() == first
        with torch.cuda.stream(second):
            assert gpu.stream == second.stream_id
        assert torch.cuda.current_stream() == first
        with second:
            assert torch.cuda.current_stream() == second
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == first
    assert gpu.stream == 0
    torch.cuda.set_stream(first)
    assert torch.accelerator.current_stream() == first
    torch.accelerator.set_stream(torch.cuda.default_stream())
    assert gpu.stream == 0


def test_memory_belongs_to_the_stream(gpu: VirtualGpu) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.empty(1000, device="cuda")
    del x
    reserved = torch.cuda.memory_reserved()
    y = torch.empty(1000, device="cuda")
    assert torch.cuda.memory_reserved() == 2 * reserved
    del y


def test_a_recorded_tensor_is_not_reused_too_early(gpu: VirtualGpu) -> None:
    side = torch.cuda.Stream()
    x = torch.empty(1000, device="cuda")
    x.record_stream(side)
    del x
    assert torch.cuda.memory_stats()["active.all.current"] >= 0
    assert torch.cuda.memory_allocated() == 0


def test_time_between_events_is_the_clocks(gpu: VirtualGpu) -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    gpu.clock.copy(1 << 30, "h2d")
    end.record()
    end.synchronize()
    assert start.query() and end.query()
    # 1 GiB over at most PCIe 4.0 x16.
    assert 30 < start.elapsed_time(end) < 300
    assert gpu.guesses["time"][1] == 1


def test_events_without_timing_or_record_complain_as_pytorch(gpu: VirtualGpu) -> None:
    plain, timed = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain.elapsed_time(timed)
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))
    assert plain.query()
    assert repr(plain) == "<torch.cuda.Event uninitialized>"
    plain.record()
    assert plain.cuda_event != 0


def test_polling_comes_to_an_end(gpu: VirtualGpu) -> None:
    gpu.clock.copy(1 << 30, "d2h", pinned=True)
    event = torch.cuda.current_stream().record_event()
    polls = 0
    while not event.query():
        polls += 1
        assert polls < 10
    assert polls == 1
    gpu.clock.copy(1 << 30, "d2h", pinned=True)
    assert not torch.cuda.current_stream().query()
    assert torch.cuda.current_stream().query()


def test_streams_wait_for_each_other(gpu: VirtualGpu) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    gpu.clock.copy(1 << 30, "h2d", pinned=True, stream=first.stream_id)
    done = first.record_event(torch.cuda.Event(enable_timing=True))
    second.wait_stream(first)
    after = second.record_event(torch.cuda.Event(enable_timing=True))
    assert done.elapsed_time(after) >= 0
    second.synchronize()
    assert first.query()


def test_generic_streams_and_events(gpu: VirtualGpu) -> None:
    stream = torch.Stream("cuda")
    event = torch.Event("cuda", enable_timing=True)
    assert isinstance(stream, torch.cuda.Stream)
    assert stream.device.type == "cuda"
    stream.record_event(event)
    stream.wait_event(event)
    assert event.device.type == "cuda"
    external = torch.cuda.ExternalStream(0x1234)
    assert external.stream_id == 0x1234
    assert torch.cuda.get_stream_from_external(0x1234) == external
