"""A trace through the allocator model: what is allocated and reserved after each event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebbtide.trace.model import Event, Ints, Trace
from ebbtide.units import parse_release
from ebbtide.vgpu.allocator import (
    AllocatorConfig,
    Block,
    CachingAllocator,
    OutOfMemory,
    TieBreak,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A GPU's memory as the allocator meets it.

    Attributes:
        usable_bytes: what the GPU has for a process.
        context_bytes: what the CUDA context takes of it.
    """

    usable_bytes: int
    context_bytes: int

    @property
    def room_bytes(self) -> int:
        """What the allocator can reserve."""
        return self.usable_bytes - self.context_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What it comes to.

    Attributes:
        peak_allocated_bytes: `torch.cuda.max_memory_allocated()`.
        peak_reserved_bytes: `torch.cuda.max_memory_reserved()`.
        retries: how often cached blocks were given back to go on.
        out_of_memory: torch's message where memory ran out, else None.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    out_of_memory: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A run looked at after every event, up to where memory ran out.

    Attributes:
        allocated: bytes after each event.
        reserved: likewise.
        total: what it comes to.
    """

    allocated: Ints
    reserved: Ints
    total: Replay

    @property
    def allocated_event(self) -> int:
        """The first event with the most allocated."""
        return int(self.allocated.argmax()) if len(self.allocated) else 0

    @property
    def ledger_event(self) -> int:
        """The event with the most allocated among those at the peak of reserved.

        Reserved memory stays at its peak once there, so this is mostly the peak of
        allocated too, and what is cached then is what no request could use.
        """
        if not len(self.reserved):
            return 0
        at_peak = self.reserved == self.reserved.max()
        return int(np.where(at_peak, self.allocated, -1).argmax())


def replay(
    trace: Trace,
    sizes: Ints,
    *,
    limit: Limit | None = None,
    config: AllocatorConfig | None = None,
) -> Replay:
    """Run the events of `trace` through the caching allocator.

    Args:
        trace: what happens, in order.
        sizes: requested bytes of each row of `trace.allocs`.
        limit: the GPU; without one, memory never runs out.
        config: the settings of ``PYTORCH_ALLOC_CONF``.
    """
    return _run(_allocator(trace, limit, config), trace, sizes)


def history(
    trace: Trace,
    sizes: Ints,
    *,
    limit: Limit | None = None,
    config: AllocatorConfig | None = None,
) -> History:
    """The same run as `replay`, looked at after every event."""
    allocated: list[int] = []
    reserved: list[int] = []
    allocator = _allocator(trace, limit, config)
    total = _run(allocator, trace, sizes, allocated=allocated, reserved=reserved)
    return History(
        allocated=np.array(allocated, np.int64),
        reserved=np.array(reserved, np.int64),
        total=total,
    )


def least_sizes(trace: Trace, sizes: Ints) -> Ints:
    """What each allocation can do with where `sizes` do not fit: less only where it can."""
    allocs = trace.allocs
    optional = allocs.fallback_bytes < allocs.likely_bytes
    return np.where(optional, np.minimum(sizes, allocs.fallback_bytes), sizes)


def live_peak(trace: Trace, sizes: Ints) -> int:
    """The most requested bytes that are alive at once: never more than what is allocated."""
    moves = (trace.event_kind == Event.ALLOC) | (trace.event_kind == Event.FREE)
    kind, row = trace.event_kind[moves], trace.event_arg[moves]
    return int(np.cumsum(np.where(kind == Event.ALLOC, sizes[row], -sizes[row])).max(initial=0))


def largest_hole(
    trace: Trace, sizes: Ints, event: int, config: AllocatorConfig | None = None
) -> int:
    """Bytes of the largest cached block once `event` has happened, on a GPU without a limit."""
    allocator = _allocator(trace, None, config)
    _run(allocator, trace, sizes, end=event + 1)
    return allocator.largest_free_block()


def _allocator(
    trace: Trace, limit: Limit | None, config: AllocatorConfig | None
) -> CachingAllocator:
    tie_break = TieBreak.of(parse_release(trace.torch_version))
    if limit is None:
        return CachingAllocator(None, config=config, tie_break=tie_break)
    return CachingAllocator(
        limit.usable_bytes,
        config=config,
        other_bytes=limit.context_bytes,
        context_bytes=limit.context_bytes,
        tie_break=tie_break,
    )


def _run(
    allocator: CachingAllocator,
    trace: Trace,
    sizes: Ints,
    *,
    allocated: list[int] | None = None,
    reserved: list[int] | None = None,
    end: int | None = None,
) -> Replay:
    """Carry out the events up to `end`, adding the two figures after each to the lists."""
    message = None
    try:
        _carry_out(allocator, trace, sizes, allocated, reserved, end)
    except OutOfMemory as error:
        message = str(error)
    return Replay(
        peak_allocated_bytes=allocator.max_memory_allocated(),
        peak_reserved_bytes=allocator.max_memory_reserved(),
        retries=allocator.heap.counters.num_alloc_retries,
        out_of_memory=message,
    )


def _carry_out(
    allocator: CachingAllocator,
    trace: Trace,
    sizes: Ints,
    allocated: list[int] | None,
    reserved: list[int] | None,
    end: int | None,
) -> None:
    blocks: list[Block | None] = [None] * len(sizes)
    total = allocator.heap.total
    requested, streams = sizes.tolist(), trace.allocs.stream.tolist()
    fallbacks = least_sizes(trace, sizes).tolist()
    events = zip(
        trace.event_kind[:end].tolist(),
        trace.event_arg[:end].tolist(),
        trace.event_extra[:end].tolist(),
        strict=True,
    )
    # Plain integers: comparing enumeration members would cost as much as the allocator.
    alloc, free, empty, record = map(
        int, (Event.ALLOC, Event.FREE, Event.EMPTY_CACHE, Event.RECORD_STREAM)
    )
    for kind, arg, extra in events:
        if kind == alloc:
            try:
                blocks[arg] = allocator.malloc(requested[arg], streams[arg])
            except OutOfMemory:
                if fallbacks[arg] >= requested[arg]:
                    raise
                blocks[arg] = allocator.malloc(fallbacks[arg], streams[arg])
        elif kind == free:
            if (block := blocks[arg]) is not None:
                allocator.free(block)
        elif kind == record:
            if (block := blocks[arg]) is not None:
                allocator.record_stream(block, extra)
        elif kind == empty:
            allocator.empty_cache()
        if allocated is not None and reserved is not None:
            allocated.append(total.bytes)
            reserved.append(total.reserved_bytes.current)
