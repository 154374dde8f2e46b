from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.gpus import catalogue, find
from ebbtide.vgpu.clock import (
    BANDWIDTH_FRACTION,
    FLOPS_FRACTION,
    HOST_OP_S,
    KERNEL_LATENCY_S,
    VirtualClock,
    copy_seconds,
    seconds_of,
)
from ebbtide.vgpu.costs import NOTHING, Cost

L4 = find("l4")
SMALL = Cost(0, 4096, "float32")
LONG = Cost(0, 300 * 10**6, "float32")  # more than a millisecond on an L4
COSTS = st.builds(
    Cost,
    flops=st.integers(0, 10**13),
    moved_bytes=st.integers(0, 10**10),
    dtype_for_rate=st.sampled_from(["float32", "float16", "tf32"]),
)
STREAMS = st.integers(0, 3)
EVENTS = st.integers(1, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), COSTS, STREAMS),
        st.tuples(st.just("copy"), st.integers(0, 10**9), STREAMS),
        st.tuples(st.just("record"), EVENTS, STREAMS),
        st.tuples(st.just("wait"), EVENTS, STREAMS),
        st.tuples(st.just("synchronize"), EVENTS, STREAMS),
    ),
    max_size=30,
)


def play(clock: VirtualClock, step: tuple[str, object, int]) -> tuple[float, float] | None:
    kind, what, stream = step
    if kind == "launch":
        assert isinstance(what, Cost)
        return clock.launch(what, stream)
    assert isinstance(what, int)
    if kind == "copy":
        direction = "h2d" if what % 2 else "d2h"
        return clock.copy(what, direction, pinned=what % 3 == 0, stream=stream)
    if kind == "record":
        clock.record(what, stream)
    elif kind == "wait":
        clock.wait(stream, what)
    else:
        clock.synchronize(stream)
    return None


def test_a_kernel_takes_the_longer_of_moving_and_computing() -> None:
    moving = seconds_of(L4, Cost(10**6, 3 * 10**9, "float16"))
    assert moving == pytest.approx(
        KERNEL_LATENCY_S + 3e9 / (L4.bandwidth_bytes_s * BANDWIDTH_FRACTION)
    )
    computing = seconds_of(L4, Cost(10**12, 10**6, "float16"))
    assert computing == pytest.approx(KERNEL_LATENCY_S + 1e12 / (121.16e12 * FLOPS_FRACTION), 1e-3)


def test_the_knee_between_them_is_where_both_take_as_long() -> None:
    moved = 10**9
    flops = round(moved / L4.bandwidth_bytes_s * L4.rate("float16"))
    below, above = (seconds_of(L4, Cost(k * flops // 10, moved, "float16")) for k in (9, 11))
    assert below == seconds_of(L4, Cost(0, moved, "float16"))
    assert above > below


def test_what_launches_nothing_takes_no_time() -> None:
    assert seconds_of(L4, NOTHING) == 0.0


def test_a_large_product_on_an_a100_takes_what_others_measured() -> None:
    # stas00/ml-engineering, MAMF table: 271.2 TFLOP/s in bfloat16 on an A100 SXM, 252.9 on
    # PCIe; 794.5 on an H100 SXM; 1745 on a B200.
    for key, measured in {"a100-80gb": 271.2, "a100-pcie-80gb": 252.9, "h100-80gb": 794.5}.items():
        tera = 1e-12 * 10**14 / seconds_of(find(key), Cost(10**14, 10**8, "bfloat16"))
        assert tera == pytest.approx(measured, rel=0.1)


def test_single_precision_uses_tensor_cores_only_where_told() -> None:
    a100 = find("a100-40gb")
    exact = seconds_of(a100, Cost(10**13, 1, "float32"))
    quick = seconds_of(a100, Cost(10**13, 1, "tf32"))
    assert exact / quick == pytest.approx(8, rel=0.01)
    turing = find("t4")
    assert seconds_of(turing, Cost(10**13, 1, "tf32")) == pytest.approx(
        seconds_of(turing, Cost(10**13, 1, "float32"))
    )


@pytest.mark.parametrize("key", [key for key, gpu in catalogue().items() if gpu.vendor == "NVIDIA"])
def test_every_gpu_has_a_time_for_everything(key: str) -> None:
    gpu = find(key)
    for dtype in ("float64", "float32", "tf32", "bfloat16", "float8_e4m3fn", "int8", "bool"):
        assert 0 < seconds_of(gpu, Cost(10**9, 10**6, dtype)) < 60


def test_a_gpu_of_unknown_speed_is_bound_by_memory() -> None:
    mi300x = find("mi300x")
    assert seconds_of(mi300x, Cost(10**15, 10**9, "float16")) == seconds_of(
        mi300x, Cost(0, 10**9, "float16")
    )


def test_copies_of_pinned_memory_are_faster() -> None:
    # rapidsai/dask-cuda#98 on PCIe 3.0: 11 to 12 GB/s pinned, 5 to 6 pageable.
    v100 = find("v100-16gb")
    assert 1e9 / copy_seconds(v100, 10**9, pinned=True) == pytest.approx(11.5e9, rel=0.01)
    assert 1e9 / copy_seconds(v100, 10**9, pinned=False) == pytest.approx(5.5e9, rel=0.01)
    assert copy_seconds(replace(v100, link_bytes_s=0.0), 10**9, pinned=True) == 0.0


def test_the_host_runs_ahead_of_long_kernels() -> None:
    clock = VirtualClock(L4)
    ends = [clock.launch(LONG)[1] for _ in range(10)]
    assert clock.now == pytest.approx(10 * HOST_OP_S)
    assert ends[-1] > 0.01
    assert clock.synchronize() == ends[-1] == clock.now


def test_short_kernels_wait_for_the_host() -> None:
    clock = VirtualClock(L4)
    spans = [clock.launch(SMALL) for _ in range(10)]
    assert seconds_of(L4, SMALL) < HOST_OP_S
    assert [start for start, _ in spans] == pytest.approx([(k + 1) * HOST_OP_S for k in range(10)])


def test_a_view_costs_the_host_alone() -> None:
    clock = VirtualClock(L4)
    start, end = clock.launch(NOTHING, 5)
    assert start == end == clock.now == HOST_OP_S
    assert clock.synchronize() == HOST_OP_S


def test_kernels_of_two_streams_run_one_after_the_other() -> None:
    clock = VirtualClock(L4)
    first = clock.launch(LONG, 1)
    second = clock.launch(LONG, 2)
    assert second[0] == first[1]


def test_copies_run_beside_kernels_and_beside_each_other() -> None:
    clock = VirtualClock(L4)
    kernel = clock.launch(LONG)
    up = clock.copy(10**8, "h2d", pinned=True, stream=1)
    down = clock.copy(10**8, "d2h", pinned=True, stream=2)
    assert up[0] < kernel[1] and down[0] < kernel[1]
    assert down[0] < up[1]
    again = clock.copy(10**8, "h2d", pinned=True, stream=3)
    assert again[0] == up[1]


def test_a_copy_waits_for_its_own_stream() -> None:
    clock = VirtualClock(L4)
    kernel = clock.launch(LONG)
    assert clock.copy(4, "d2h", pinned=True)[0] == kernel[1]


def test_the_host_waits_for_pageable_memory() -> None:
    clock = VirtualClock(L4)
    _, end = clock.copy(10**8, "h2d")
    assert clock.now == end
    pinned = VirtualClock(L4)
    _, end = pinned.copy(10**8, "h2d", pinned=True)
    assert pinned.now == HOST_OP_S < end


def test_a_direction_is_one_of_two() -> None:
    clock = VirtualClock(L4)
    with pytest.raises(ValueError, match="'h2d' or 'd2h', got 'up'"):
        clock.copy(1, "up")
    assert clock.now == 0.0


def test_events_measure_what_lies_between_them() -> None:
    clock = VirtualClock(L4)
    clock.launch(LONG)
    clock.record(1)
    for _ in range(3):
        clock.launch(LONG)
    clock.record(2)
    assert clock.elapsed(1, 2) == pytest.approx(3 * seconds_of(L4, LONG))
    assert clock.elapsed(2, 1) == -clock.elapsed(1, 2)
    assert not clock.query(2)
    clock.synchronize(event=1)
    assert clock.query(1) and not clock.query(2)
    clock.synchronize(event=2)
    assert clock.query(2)


def test_a_stream_waits_for_an_event_of_another() -> None:
    clock = VirtualClock(L4)
    _, end = clock.copy(10**8, "h2d", pinned=True, stream=1)
    clock.record(7, 1)
    assert clock.launch(SMALL, 2)[0] < end
    clock.wait(2, 7)
    assert clock.launch(SMALL, 2)[0] == end
    assert clock.launch(SMALL, 3)[0] > end  # kernels share one compute engine


def test_an_event_never_recorded_holds_nobody_up() -> None:
    clock = VirtualClock(L4)
    clock.wait(0, 99)
    assert clock.query(99)
    assert clock.synchronize(event=99) == 0.0
    with pytest.raises(ValueError, match="event 99 has not been recorded"):
        clock.elapsed(99, 99)


def test_an_event_can_be_recorded_again() -> None:
    clock = VirtualClock(L4)
    clock.record(1)
    clock.record(2)
    clock.launch(LONG)
    clock.record(2)
    assert clock.elapsed(1, 2) >= seconds_of(L4, LONG)


def test_waiting_for_one_stream_leaves_the_others_running() -> None:
    clock = VirtualClock(L4)
    _, early = clock.launch(LONG, 1)
    _, late = clock.launch(LONG, 2)
    assert clock.synchronize(1) == early < late
    assert clock.synchronize(9) == early
    assert clock.synchronize() == late


@given(STEPS)
def test_time_never_runs_backwards(steps: list[tuple[str, object, int]]) -> None:
    clock = VirtualClock(L4)
    seen = [clock.now]
    for step in steps:
        span = play(clock, step)
        if span is not None:
            assert span[0] <= span[1]
            assert seen[-1] <= span[0]
        seen.append(clock.now)
    assert all(before <= after for before, after in pairwise(seen))
    assert clock.synchronize() >= seen[-1]


@given(STEPS)
def test_work_of_a_stream_stays_in_order(steps: list[tuple[str, object, int]]) -> None:
    clock = VirtualClock(L4)
    last: dict[int, float] = {}
    kernels = 0.0
    for step in steps:
        span = play(clock, step)
        if span is None or span[0] == span[1]:
            continue
        assert span[0] >= last.get(step[2], 0.0)
        last[step[2]] = span[1]
        if step[0] == "launch":
            assert span[0] >= kernels  # one compute engine
            kernels = span[1]


@given(STEPS, EVENTS, STREAMS)
def test_work_after_a_wait_starts_after_the_event(
    steps: list[tuple[str, object, int]], event: int, stream: int
) -> None:
    clock = VirtualClock(L4)
    for step in steps:
        play(clock, step)
    clock.record(event, (stream + 1) % 4)
    clock.record(0, stream)
    clock.wait(stream, event)
    start, _ = clock.launch(SMALL, stream)
    assert start >= max(clock.elapsed(0, event), 0.0)
    clock.synchronize(event=event)
    assert clock.query(event)


@given(STEPS)
def test_the_same_work_takes_the_same_time(steps: list[tuple[str, object, int]]) -> None:
    one, two = VirtualClock(L4), VirtualClock(L4)
    assert [play(one, step) for step in steps] == [play(two, step) for step in steps]


@given(COSTS)
def test_a_faster_gpu_is_never_slower(cost: Cost) -> None:
    assert seconds_of(find("h100-80gb"), cost) <= seconds_of(find("a100-40gb"), cost)
    assert seconds_of(find("a100-40gb"), cost) >= seconds_of(find("a100-80gb"), cost)
