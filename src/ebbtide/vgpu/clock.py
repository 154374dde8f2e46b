"""The virtual clock: predicted time, never a measurement.

A kernel takes a fixed latency and the longer of moving its bytes and computing its
operations. Kernels run one after the other; a copy engine works in each direction
beside them; the host runs ahead and spends a little on every launch.
"""

from __future__ import annotations

from ebbtide.gpus import Gpu
from ebbtide.vgpu.costs import Cost

# Share of the memory bandwidth that kernels reach, and the latency of one.
# ai-dynamo/aiconfigurator @ 095f58a5 (2026-08): mem_bw_empirical_scaling_factor 0.8 and
# mem_empirical_constant_latency 3 us, "nonofficial correction based on observations".
BANDWIDTH_FRACTION = 0.8
KERNEL_LATENCY_S = 3e-6
# Share of the peak that matrix products reach at their best shape: H100 80.3 %, A100
# 81.1 % (PCIe) and 86.9 % (SXM), B200 77.6 %. stas00/ml-engineering, compute/accelerator,
# "Maximum Achievable Matmul FLOPS comparison table" (read 2026-11-30).
FLOPS_FRACTION = 0.8
# Host time of one operation in eager mode: 6.8 us for a multiplication that autograd
# records. pytorch/pytorch#41383 (2020-07-14).
HOST_OP_S = 6.8e-6
# Shares of PCIe 3.0 x16 (15.75 GB/s) that copies were seen to reach: 11 to 12 GB/s from
# pinned memory, 5 to 6 from pageable. rapidsai/dask-cuda#98 (2019-08-01).
PINNED_FRACTION = 11.5 / 15.754
PAGEABLE_FRACTION = 5.5 / 15.754
# What stands in place of an arithmetic rate where an operation is a copy between host and
# device: the direction, and whether the host's memory is page-locked.
LINKS = {
    "h2d": ("h2d", False),
    "h2d-pinned": ("h2d", True),
    "d2h": ("d2h", False),
    "d2h-pinned": ("d2h", True),
}


def seconds_of(gpu: Gpu, cost: Cost) -> float:
    """Predicted seconds of one kernel or copy on `gpu`; 0.0 for an operation without one."""
    if not (cost.moved_bytes or cost.flops):
        return 0.0
    if cost.dtype_for_rate in LINKS:
        return copy_seconds(gpu, cost.moved_bytes, pinned=LINKS[cost.dtype_for_rate][1])
    moving = cost.moved_bytes / (gpu.bandwidth_bytes_s * BANDWIDTH_FRACTION)
    rate = gpu.rate(cost.dtype_for_rate) * FLOPS_FRACTION
    computing = cost.flops / rate if rate else 0.0
    return KERNEL_LATENCY_S + max(moving, computing)


def copy_seconds(gpu: Gpu, nbytes: int, *, pinned: bool) -> float:
    """Predicted seconds of a copy between host and device; 0.0 where the link is unknown."""
    fraction = PINNED_FRACTION if pinned else PAGEABLE_FRACTION
    if not gpu.link_bytes_s:
        return 0.0
    return KERNEL_LATENCY_S + nbytes / (gpu.link_bytes_s * fraction)


class VirtualClock:
    """The time of one GPU and of the program that drives it, in seconds from 0.

    Streams are known by number, 0 is the default one; none waits for another unless
    told to, as with the non-blocking streams that torch makes. Events are known by
    any number that the caller gives them.

    Args:
        gpu: whose speeds to use.

    Attributes:
        now: host time.
    """

    __slots__ = ("_compute", "_engines", "_events", "_known", "_streams", "gpu", "now")

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.now = 0.0
        self._compute = 0.0  # when the last kernel ends
        self._engines = {"h2d": 0.0, "d2h": 0.0}
        self._streams: dict[int, float] = {}
        self._events: dict[int, float] = {}
        self._known: dict[Cost, float] = {}

    def launch(self, cost: Cost, stream: int = 0) -> tuple[float, float]:
        """Launch a kernel; the host goes on. Returns when it starts and when it ends."""
        seconds = self._known.get(cost)
        if seconds is None:
            seconds = self._known[cost] = seconds_of(self.gpu, cost)
        return self.run(seconds, stream)

    def run(self, seconds: float, stream: int = 0) -> tuple[float, float]:
        """`launch` of a kernel that takes so long; 0.0 for an operation without one."""
        self.now = start = self.now + HOST_OP_S
        if not seconds:
            return start, start  # a view: nothing reaches the device
        # Compared by hand: this runs once for every kernel, and `max` takes as long as the rest.
        if self._compute > start:
            start = self._compute
        ready = self._streams.get(stream, 0.0)
        if ready > start:
            start = ready
        self._compute = self._streams[stream] = end = start + seconds
        return start, end

    def copy(
        self, nbytes: int, direction: str, *, pinned: bool = False, stream: int = 0
    ) -> tuple[float, float]:
        """Copy between host and device on the engine of that direction.

        Args:
            nbytes: how much.
            direction: ``"h2d"`` or ``"d2h"``.
            pinned: whether the host's memory is page-locked; if not, the host waits
                for the end, as CUDA stages such copies through a buffer of its own.
            stream: whose earlier work comes first.

        Returns:
            When it starts and when it ends.

        Raises:
            ValueError: the direction is none of the two.
        """
        if direction not in self._engines:
            raise ValueError(f"direction should be 'h2d' or 'd2h', got {direction!r}")
        self.now += HOST_OP_S
        start = max(self.now, self._engines[direction], self._streams.get(stream, 0.0))
        end = start + copy_seconds(self.gpu, nbytes, pinned=pinned)
        self._engines[direction] = self._streams[stream] = end
        if not pinned:
            self.now = end
        return start, end

    def record(self, event: int, stream: int = 0) -> None:
        """Note when the work that `stream` has so far will be done."""
        self._events[event] = max(self.now, self._streams.get(stream, 0.0))

    def wait(self, stream: int, event: int) -> None:
        """Later work of `stream` waits for `event`; one never recorded holds nobody up."""
        happens = self._events.get(event, 0.0)
        if happens > self._streams.get(stream, 0.0):
            self._streams[stream] = happens

    def query(self, event: int) -> bool:
        """Whether the event has happened by now; true for one never recorded, as in CUDA."""
        return self._events.get(event, 0.0) <= self.now

    def elapsed(self, start: int, end: int) -> float:
        """Seconds between two recorded events.

        Raises:
            ValueError: one of them has not been recorded.
        """
        for event in (start, end):
            if event not in self._events:
                raise ValueError(f"event {event} has not been recorded")
        return self._events[end] - self._events[start]

    def synchronize(self, stream: int | None = None, *, event: int | None = None) -> float:
        """The host waits: for a stream, an event, or everything. Returns the time then."""
        if event is not None:
            until = self._events.get(event, 0.0)
        elif stream is not None:
            until = self._streams.get(stream, 0.0)
        else:
            until = max(self._streams.values(), default=0.0)
        self.now = max(self.now, until)
        return self.now
