"""The step time in whole columns against the same rules in a plain loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import Builder

from ebbtide.gpus import find
from ebbtide.prediction.steptime import last_step, step_seconds
from ebbtide.trace.model import Event, Trace
from ebbtide.vgpu.clock import HOST_OP_S

L4 = find("l4")

# What an operation moves in bytes, or None for a wait of the host.
WORK = st.lists(st.none() | st.sampled_from([0, 512, 10**5, 10**6, 10**7]), min_size=1, max_size=40)


def built(work: list[int | None]) -> Trace:
    b = Builder()
    b.phase("setup", 0)
    b.op("aten::randn", moved=10**9)
    b.phase("forward", 1)
    for moved in work:
        if moved is None:
            b.event(Event.SYNC)
        else:
            b.op("aten::add", moved=moved)
    return b.build()


def in_a_loop(trace: Trace) -> float:
    counted = last_step(trace)
    host = device = 0.0
    ends = []
    first = min(
        i
        for i, (kind, arg) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True))
        if kind == Event.OP and counted[arg]
    )
    last = max(
        i
        for i, (kind, arg) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True))
        if kind == Event.OP and counted[arg]
    )
    for _ in range(2):
        for kind, arg in zip(
            trace.event_kind[first : last + 1], trace.event_arg[first : last + 1], strict=True
        ):
            if kind == Event.SYNC:
                host = max(host, device)
            elif kind == Event.OP:
                host += HOST_OP_S
                seconds = float(trace.ops.seconds[arg])
                if seconds:
                    device = max(device, host) + seconds
        ends.append(max(host, device))
    return ends[1] - ends[0]


@given(WORK)
def test_as_in_a_loop(work: list[int | None]) -> None:
    trace = built(work)
    found = step_seconds(trace, L4)
    if not any(work):
        assert found is None
    else:
        assert found == pytest.approx(in_a_loop(trace), rel=1e-9)


@given(WORK, st.integers(0, 40))
def test_a_wait_never_makes_a_step_shorter(work: list[int | None], place: int) -> None:
    without = step_seconds(built(work), L4)
    with_wait = step_seconds(built([*work[:place], None, *work[place:]]), L4)
    if without is not None and with_wait is not None:
        assert with_wait >= without - 1e-12


@given(st.lists(st.sampled_from([512, 10**5, 10**6, 10**7]), min_size=1, max_size=40))
def test_between_the_sum_and_the_longer_of_host_and_device(work: list[int]) -> None:
    trace = built(list(work))
    device = float(trace.ops.seconds[last_step(trace)].sum())
    host = HOST_OP_S * len(work)
    found = step_seconds(trace, L4)
    assert found is not None
    assert max(device, host) - 1e-12 <= found <= device + host + 1e-12
