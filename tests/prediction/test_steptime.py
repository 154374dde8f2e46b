from __future__ import annotations

import numpy as np
import pytest
from tests.prediction.builder import Builder, training

from ebbtide.gpus import find
from ebbtide.prediction.family import family
from ebbtide.prediction.steptime import _kernel_seconds, last_step, step_seconds, step_seconds_at
from ebbtide.trace.model import Event, Trace
from ebbtide.vgpu.clock import HOST_OP_S, KERNEL_LATENCY_S, VirtualClock, seconds_of
from ebbtide.vgpu.costs import Cost

L4, A100 = find("l4"), find("a100-80gb")


def by_the_clock(trace: Trace, steps: int = 2) -> float:
    """The last step launched on the virtual clock, operation by operation."""
    clock = VirtualClock(L4)
    ends = []
    counted = last_step(trace)
    rows = [int(r) for r in trace.event_arg[trace.event_kind == Event.OP] if counted[int(r)]]
    for _ in range(steps):
        for row in rows:
            ops = trace.ops
            cost = Cost(int(ops.flops[row]), int(ops.moved_bytes[row]), trace.names[ops.rate[row]])
            clock.launch(cost)
        ends.append(clock.synchronize() if not ends else max(clock._compute, clock.now))
    return ends[-1]


def test_columns_follow_the_clocks_rule() -> None:
    trace = training(8)
    ops = trace.ops
    for gpu in (L4, A100):
        expected = [
            seconds_of(gpu, Cost(int(f), int(m), trace.names[r]))
            for f, m, r in zip(ops.flops, ops.moved_bytes, ops.rate, strict=True)
        ]
        found = _kernel_seconds(trace, ops.flops, ops.moved_bytes, gpu)
        assert np.allclose(found, expected, rtol=1e-12)


def test_device_bound_step_is_the_sum_of_its_kernels() -> None:
    trace = training(64, width=4096)
    expected = trace.ops.seconds[last_step(trace)].sum()
    assert step_seconds(trace, L4) == pytest.approx(expected, rel=1e-3)


def test_host_bound_step_is_what_the_host_spends() -> None:
    b = Builder()
    for step in (1, 2):
        b.phase("forward", step)
        for _ in range(1000):
            b.op("aten::add", moved=512)
        b.phase("optimizer", step)
        b.op("aten::_foreach_add_", moved=512)
    assert KERNEL_LATENCY_S < HOST_OP_S
    assert step_seconds(b.build(), L4) == pytest.approx(1001 * HOST_OP_S, rel=1e-3)


def test_a_single_step_agrees_with_the_clock() -> None:
    trace = training(4, width=512)
    once = by_the_clock(trace, steps=1)
    found = step_seconds(trace, L4)
    assert found is not None
    # The clock starts with an idle host; in the middle of a run it is ahead.
    assert found <= once <= found + 2 * KERNEL_LATENCY_S + HOST_OP_S * 20


def waiting(waits: int) -> Trace:
    b = Builder()
    b.phase("forward", 1)
    for index in range(100):
        b.op("aten::mm", moved=300_000_000)
        for _ in range(5):
            b.op("aten::add", moved=512)
        if index < waits:
            b.event(Event.SYNC)
    return b.build()


def test_waiting_for_the_gpu_costs_the_hosts_lead() -> None:
    none, some, many = (step_seconds(waiting(n), L4) for n in (0, 10, 100))
    assert none is not None
    assert some is not None
    assert many is not None
    assert none < some < many
    # Each wait leaves the device idle while the host launches the first kernel anew.
    assert many - none == pytest.approx(100 * HOST_OP_S, rel=0.05)


def test_only_the_last_training_step_counts() -> None:
    b = Builder()
    b.phase("setup", 0)
    b.op("aten::empty", moved=10**9)
    for step, moved in ((1, 10**9), (2, 10**8)):
        b.phase("forward", step)
        b.op("aten::mm", moved=moved)
        b.phase("optimizer", step)
        b.op("aten::_foreach_add_", moved=moved)
    b.phase("evaluation", 3)
    b.op("aten::mm", moved=10**9)
    trace = b.build()
    assert trace.ops.moved_bytes[last_step(trace)].tolist() == [10**8, 10**8]


def test_inference_counts_its_last_forward() -> None:
    b = Builder()
    for step in (1, 2):
        b.phase("inference", step)
        b.op("aten::mm", moved=step)
    assert last_step(b.build()).tolist() == [False, True]


@pytest.mark.parametrize("batch", [1, 7, 64, 500])
def test_any_batch_as_if_traced(batch: int) -> None:
    made = family({b: training(b, width=2048) for b in (8, 16)})
    assert step_seconds_at(made, batch, L4) == pytest.approx(
        step_seconds(training(batch, width=2048), L4)
    )


def test_another_gpu_of_the_class() -> None:
    slow, fast = (step_seconds(training(64, width=4096), gpu) for gpu in (L4, A100))
    assert slow is not None
    assert fast is not None
    assert slow > 2 * fast


def test_no_cost_no_time() -> None:
    b = Builder()
    b.phase("forward", 1)
    b.op("aten::view")
    assert step_seconds(b.build(), L4) is None
    assert step_seconds(Builder().build(), L4) is None
    made = family({batch: b.build() for batch in (1, 2)})
    assert step_seconds_at(made, 4, L4) is None


def test_beyond_counting_there_is_no_time() -> None:
    def trace(batch: int) -> Trace:
        b = Builder()
        b.phase("forward", 1)
        b.op("aten::mm", flops=batch << 40)
        return b.build()

    made = family({batch: trace(batch) for batch in (1, 2)})
    assert step_seconds_at(made, 1 << 30, L4) is None
