"""The clock follows the tape: kernels, copies over the link, waits."""

from __future__ import annotations

import pytest
import torch

from ebbtide.gpus import find
from ebbtide.vgpu.clock import HOST_OP_S, KERNEL_LATENCY_S, copy_seconds, seconds_of
from ebbtide.vgpu.costs import Cost
from ebbtide.vgpu.live_clock import LiveClock
from ebbtide.vgpu.tape import SYNC, Tape
from ebbtide.vgpu.virtual_gpu import VirtualGpu

L4 = find("l4")
SIZE = 4 << 20  # bytes of the tensors below


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def test_kernels_take_their_time(gpu: VirtualGpu) -> None:
    data = torch.randn(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    start, end = _events()
    start.record()
    for _ in range(10):
        data @ data
    end.record()
    each = seconds_of(L4, Cost(2 * 1024**3, 3 * SIZE, "float32"))
    assert each > HOST_OP_S
    # The host is ahead after the first launch.
    assert start.elapsed_time(end) == pytest.approx(1e3 * (10 * each + HOST_OP_S))


@pytest.mark.parametrize("pinned", [False, True])
def test_uploads_take_the_links_time(gpu: VirtualGpu, pinned: bool) -> None:
    data = torch.randn(1024, 1024)
    data = data.pin_memory() if pinned else data
    start, end = _events()
    start.record()
    there = data.to("cuda", non_blocking=pinned)
    end.record()
    expected = copy_seconds(L4, SIZE, pinned=pinned) + HOST_OP_S
    assert there.is_cuda
    assert start.elapsed_time(end) == pytest.approx(1e3 * expected)
    assert copy_seconds(L4, SIZE, pinned=True) < copy_seconds(L4, SIZE, pinned=False)


def test_downloads_wait_for_the_work(gpu: VirtualGpu) -> None:
    data = torch.randn(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    before = gpu.clock.now
    for _ in range(10):
        data = data @ data
    assert gpu.clock.now - before == pytest.approx(10 * HOST_OP_S)  # launched, not done
    data.cpu()
    each = seconds_of(L4, Cost(2 * 1024**3, 3 * SIZE, "float32"))
    expected = HOST_OP_S + 10 * each + copy_seconds(L4, SIZE, pinned=False)
    assert gpu.clock.now - before == pytest.approx(expected)


def test_a_value_that_is_read_waits(gpu: VirtualGpu) -> None:
    data = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    before = gpu.clock.now
    (data @ data).sum().item()
    product = seconds_of(L4, Cost(2 * 4096**3, 3 * 4 * 4096**2, "float32"))
    assert gpu.clock.now - before > product


def test_copies_are_marked_for_other_gpus(gpu: VirtualGpu) -> None:
    tape = gpu.tape
    torch.ones(256).cuda().cpu()
    torch.empty(256).copy_(torch.ones(256, device="cuda"))
    torch.empty(256, device="cuda").copy_(torch.ones(256).pin_memory())
    found = [
        (tape.names.items[name], tape.names.items[rate], moved)
        for name, rate, moved in zip(tape.op_name, tape.op_rate, tape.op_moved, strict=True)
        if "copy" in tape.names.items[name]
    ]
    assert found == [
        ("aten::_to_copy", "h2d", 1024), ("aten::_to_copy", "d2h", 1024),
        ("aten::copy_", "d2h", 1024), ("aten::copy_", "h2d-pinned", 1024),
    ]  # fmt: skip


def test_a_copy_on_the_device_stays_on_the_device(gpu: VirtualGpu) -> None:
    data = torch.ones(256, device="cuda")
    data.to(torch.float16)
    torch.empty(256, device="cuda").copy_(data)
    rates = {gpu.tape.names.items[rate] for rate in gpu.tape.op_rate}
    assert rates <= {"float32", "float16"}


def test_streams_run_beside_each_other_only_for_copies(gpu: VirtualGpu) -> None:
    data, host = torch.randn(2048, 2048, device="cuda"), torch.randn(2048, 2048).pin_memory()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    before = gpu.clock.now
    data @ data
    with torch.cuda.stream(side):
        host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    product = seconds_of(L4, Cost(2 * 2048**3, 3 * 4 * 2048**2, "float32"))
    copy = copy_seconds(L4, 4 * 2048**2, pinned=True)
    assert gpu.clock.now - before == pytest.approx(max(HOST_OP_S + product, 2 * HOST_OP_S + copy))


def test_waiting_for_another_stream(gpu: VirtualGpu) -> None:
    host = torch.randn(2048, 2048).pin_memory()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        there = host.to("cuda", non_blocking=True)
    main.wait_stream(side)
    there + 1
    torch.cuda.synchronize()
    copy = copy_seconds(L4, 4 * 2048**2, pinned=True)
    add = seconds_of(L4, Cost(0, 2 * 4 * 2048**2, "float32"))
    assert gpu.clock.now == pytest.approx(HOST_OP_S + copy + add)


def test_it_catches_up_once() -> None:
    tape = Tape()
    clock = LiveClock(L4, tape)
    assert clock.now == 0.0
    for column, value in (
        (tape.op_name, 0), (tape.op_rate, tape.names.of("float32")), (tape.op_stream, 0),
        (tape.op_moved, 10), (tape.op_flops, 0),
    ):  # fmt: skip
        column.append(value)
    tape.op_seconds.append(1.0)
    tape.event(2, 0)
    assert clock.now == clock.now == HOST_OP_S
    tape.event(SYNC)
    assert clock.now == HOST_OP_S + 1.0
    start, end = clock.copy(0, "h2d", pinned=True)
    assert end - start == pytest.approx(KERNEL_LATENCY_S)
    clock.record(1)
    assert clock.query(1) is False
    clock.wait(3, 1)
    assert clock.synchronize(3) == pytest.approx(end)
    assert clock.query(1) is True
    clock.record(2)
    assert clock.elapsed(1, 2) == pytest.approx(0.0)
