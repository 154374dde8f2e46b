"""Predicted seconds of a step, on any GPU of the trace's class and at any batch size.

By the rules of the virtual clock: a kernel takes its latency and the longer of moving
its bytes and computing, kernels run one after the other, and the host, which spends a
little on each operation, runs ahead until something makes it wait. So a step's time is
not affine in the batch: at batch 1 the host binds, then reading the weights, then
computing. What an operation moves and computes is affine, and so exact at any batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ebbtide.gpus import Gpu
from ebbtide.prediction.family import Family
from ebbtide.trace.model import Event, Floats, Ints, Trace
from ebbtide.vgpu.clock import (
    BANDWIDTH_FRACTION,
    FLOPS_FRACTION,
    HOST_OP_S,
    KERNEL_LATENCY_S,
    LINKS,
    copy_seconds,
)

_STEP_PHASES = ("forward", "backward", "optimizer", "between")


def step_seconds(trace: Trace, gpu: Gpu) -> float | None:
    """Seconds of the trace's last step on `gpu`; None where no operation has a cost."""
    return _duration(trace, _kernel_seconds(trace, trace.ops.flops, trace.ops.moved_bytes, gpu))


def step_seconds_at(family: Family, batch: int, gpu: Gpu) -> float | None:
    """Seconds of the last step at `batch` on `gpu`; None where no operation has a cost."""
    flops, moved = family.flops.at(batch), family.moved_bytes.at(batch)
    if flops is None or moved is None:
        return None
    return _duration(family.trace, _kernel_seconds(family.trace, flops, moved, gpu))


def last_step(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which operations belong to the last training step, or to the last forward without one."""
    steps = np.array([phase.step for phase in trace.phases] or [0], np.int64)
    names = np.array([phase.name for phase in trace.phases] or [""])
    trained = names == "optimizer"
    if trained.any():
        # An evaluation after the last step is no part of it.
        chosen = (steps == steps[trained].max()) & np.isin(names, _STEP_PHASES)
    else:
        chosen = steps == steps.max()
    return np.asarray(chosen[np.maximum(trace.ops.phase, 0)])


def _kernel_seconds(trace: Trace, flops: Ints, moved_bytes: Ints, gpu: Gpu) -> Floats:
    """`vgpu.clock.seconds_of` for whole columns; a test holds the two equal."""
    per_name = np.array([gpu.rate(name) for name in trace.names] or [0.0]) * FLOPS_FRACTION
    rate = per_name[trace.ops.rate]
    computing = np.divide(flops, rate, out=np.zeros(len(flops)), where=rate > 0)
    moving = moved_bytes / (gpu.bandwidth_bytes_s * BANDWIDTH_FRACTION)
    runs = (moved_bytes > 0) | (flops > 0)
    seconds = np.where(runs, KERNEL_LATENCY_S + np.maximum(moving, computing), 0.0)
    for number, name in enumerate(trace.names):
        if name in LINKS:
            copies = (trace.ops.rate == number) & runs
            link = [copy_seconds(gpu, int(n), pinned=LINKS[name][1]) for n in moved_bytes[copies]]
            seconds[copies] = link
    return np.asarray(seconds)


def _duration(trace: Trace, seconds: Floats) -> float | None:
    """How much later the last step ends when it runs twice in a row than when it runs once.

    So the host's lead at the end of a step counts for the next one.
    """
    counted = last_step(trace) if len(seconds) else np.zeros(0, bool)
    if not seconds[counted].any():
        return None
    kinds, args = trace.event_kind, trace.event_arg
    is_op = (kinds == Event.OP) & counted[np.where(kinds == Event.OP, args, 0)]
    of_step = np.flatnonzero(is_op)
    inside = slice(of_step[0], of_step[-1] + 1)
    waits = (kinds == Event.SYNC)[inside]
    kept = is_op[inside] | waits
    work = np.where(is_op[inside], seconds[np.where(is_op[inside], args[inside], 0)], 0.0)
    stretches = np.split(work[kept], np.flatnonzero(waits[kept]))
    host = device = 0.0
    ends = []
    for _ in range(2):
        for index, stretch in enumerate(stretches):
            if index:  # begins with the wait itself
                host, stretch = max(host, device), stretch[1:]
            host, device = _run(stretch, host, device)
        ends.append(max(host, device))
    return ends[1] - ends[0]


def _run(work: Floats, host: float, device: float) -> tuple[float, float]:
    """When the host and the device are done with kernels of `work` seconds, without a wait."""
    if not len(work):
        return host, device
    launched = host + HOST_OP_S * np.arange(1, len(work) + 1)
    left = np.cumsum(work[::-1])[::-1]  # from each kernel to the end
    busy = work > 0
    starts = np.where(busy, launched + left, 0.0)
    return float(launched[-1]), max(device + float(left[0]), float(starts.max()))
