"""What the allocator counts, in the shape of `torch.cuda.memory_stats_as_nested_dict`.

Source: `DeviceStats` of torch 2.13's `c10/core/CachingDeviceAllocator.h` and the
places of `c10/cuda/CUDACachingAllocator.cpp` that change it.
"""

from __future__ import annotations


class Gauge:
    """A quantity that goes up and down: now, at its peak, and summed up each way."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.allocated = 0
        self.freed = 0

    def change(self, amount: int) -> None:
        """Go up by `amount`, or down where it is negative."""
        self.current += amount
        if amount > 0:
            self.allocated += amount
            if self.current > self.peak:
                self.peak = self.current
        else:
            self.freed -= amount

    def reset_peak(self) -> None:
        """Let the peak be what is there now."""
        self.peak = self.current

    def reset_accumulated(self) -> None:
        """Forget the sums."""
        self.allocated = self.freed = 0

    def as_dict(self) -> dict[str, int]:
        """The four figures by torch's names."""
        return _figures(self.current, self.peak, self.allocated, self.freed)


def _figures(current: int, peak: int, allocated: int, freed: int) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


class Tally:
    """What is counted of the small pool, of the large one, or of both together.

    The figures that change with every request are plain integers, since they are
    the hot path: `count`, `bytes` and `requested` of what is handed out or (for
    `requested`) still in use, each with its peak, its sum since the last reset
    (``*_total``) and its value at that reset (``*_start``). What was freed follows
    from the three. Blocks in use are those handed out and the `pending` ones.
    """

    __slots__ = (
        "active_bytes_peak",
        "active_count_peak",
        "bytes",
        "bytes_peak",
        "bytes_start",
        "bytes_total",
        "count",
        "count_peak",
        "count_start",
        "count_total",
        "inactive_split",
        "inactive_split_bytes",
        "pending",
        "pending_bytes",
        "pending_bytes_start",
        "pending_start",
        "requested",
        "requested_peak",
        "requested_start",
        "requested_total",
        "reserved_bytes",
        "segment",
    )

    def __init__(self) -> None:
        self.count = self.count_peak = self.count_total = self.count_start = 0
        self.bytes = self.bytes_peak = self.bytes_total = self.bytes_start = 0
        self.requested = self.requested_peak = self.requested_total = self.requested_start = 0
        self.pending = self.pending_start = self.active_count_peak = 0
        self.pending_bytes = self.pending_bytes_start = self.active_bytes_peak = 0
        self.segment = Gauge()
        self.reserved_bytes = Gauge()
        self.inactive_split = Gauge()
        self.inactive_split_bytes = Gauge()

    def hand_out(self, size: int, requested: int) -> None:
        """Count a block of `size` bytes handed out for a request of `requested` bytes."""
        self.count_total += 1
        self.count = count = self.count + 1
        if count > self.count_peak:
            self.count_peak = count
        self.bytes_total += size
        self.bytes = held = self.bytes + size
        if held > self.bytes_peak:
            self.bytes_peak = held
        self.requested_total += requested
        self.requested = asked = self.requested + requested
        if asked > self.requested_peak:
            self.requested_peak = asked
        if self.pending:
            self.active_count_peak = max(self.active_count_peak, count + self.pending)
            self.active_bytes_peak = max(self.active_bytes_peak, held + self.pending_bytes)

    def take_back(self, size: int, requested: int) -> None:
        """Count a block freed that no other stream uses."""
        self.count -= 1
        self.bytes -= size
        self.requested -= requested

    def defer(self, size: int) -> None:
        """Count a block freed that must wait for other streams."""
        self.count -= 1
        self.bytes -= size
        self.pending += 1
        self.pending_bytes += size
        self.active_count_peak = max(self.active_count_peak, self.count + self.pending)
        self.active_bytes_peak = max(self.active_bytes_peak, self.bytes + self.pending_bytes)

    def complete(self, size: int, requested: int) -> None:
        """Count a deferred block as free at last."""
        self.pending -= 1
        self.pending_bytes -= size
        self.requested -= requested

    def change_inactive(self, count: int, size: int) -> None:
        """Count `count` more (or fewer) cached parts of segments, of `size` bytes in all."""
        if count:
            self.inactive_split.change(count)
        if size:
            self.inactive_split_bytes.change(size)

    def _gauges(self) -> tuple[Gauge, ...]:
        return (self.segment, self.reserved_bytes, self.inactive_split, self.inactive_split_bytes)

    def reset_peak(self) -> None:
        """Let every peak be what is there now."""
        self.count_peak = self.count
        self.bytes_peak = self.bytes
        self.requested_peak = self.requested
        self.active_count_peak = self.count + self.pending
        self.active_bytes_peak = self.bytes + self.pending_bytes
        for gauge in self._gauges():
            gauge.reset_peak()

    def reset_accumulated(self) -> None:
        """Forget every sum."""
        self.count_total = self.bytes_total = self.requested_total = 0
        self.count_start = self.count
        self.bytes_start = self.bytes
        self.requested_start = self.requested
        self.pending_start = self.pending
        self.pending_bytes_start = self.pending_bytes
        for gauge in self._gauges():
            gauge.reset_accumulated()

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Every statistic by torch's name."""
        count = _figures(
            self.count,
            self.count_peak,
            self.count_total,
            self.count_start + self.count_total - self.count,
        )
        held = _figures(
            self.bytes,
            self.bytes_peak,
            self.bytes_total,
            self.bytes_start + self.bytes_total - self.bytes,
        )
        return {
            "allocation": count,
            "segment": self.segment.as_dict(),
            "active": _figures(
                self.count + self.pending,
                max(self.count_peak, self.active_count_peak),
                self.count_total,
                count["freed"] + self.pending_start - self.pending,
            ),
            "inactive_split": self.inactive_split.as_dict(),
            "allocated_bytes": held,
            "reserved_bytes": self.reserved_bytes.as_dict(),
            "active_bytes": _figures(
                self.bytes + self.pending_bytes,
                max(self.bytes_peak, self.active_bytes_peak),
                self.bytes_total,
                held["freed"] + self.pending_bytes_start - self.pending_bytes,
            ),
            "inactive_split_bytes": self.inactive_split_bytes.as_dict(),
            "requested_bytes": _figures(
                self.requested,
                self.requested_peak,
                self.requested_total,
                self.requested_start + self.requested_total - self.requested,
            ),
        }


class Counters:
    """What is counted once for the whole device."""

    __slots__ = (
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "num_ooms",
        "num_sync_all_streams",
        "oversize_allocations",
        "oversize_segments",
    )

    def __init__(self) -> None:
        self.oversize_allocations = Gauge()
        self.oversize_segments = Gauge()
        self.num_alloc_retries = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0

    def reset_peak(self) -> None:
        """Let every peak be what is there now."""
        self.oversize_allocations.reset_peak()
        self.oversize_segments.reset_peak()

    def reset_accumulated(self) -> None:
        """Forget every sum and count."""
        self.oversize_allocations.reset_accumulated()
        self.oversize_segments.reset_accumulated()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0
