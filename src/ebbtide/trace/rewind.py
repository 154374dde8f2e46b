"""Where a record began: the segments and blocks before its first event.

A snapshot says what the allocator held when it was taken, and what happened before
that. Undoing what happened, from the last event to the first, leaves the state at
the beginning, from which the record can then be replayed.

One thing is not in the record: the size of a block, which may exceed what was
requested. A block of the large pool keeps up to 1 MiB that is too little to split
off, and nothing in that pool is ever smaller than that; so whatever gap of at most
1 MiB shows up behind a live block, at any time while it lives, belongs to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace
from itertools import pairwise

from ebbtide.errors import SnapshotError
from ebbtide.trace.snapshot_types import (
    Action,
    BlockState,
    DeviceRecord,
    SnapshotBlock,
    SnapshotSegment,
    TraceEntry,
)
from ebbtide.vgpu.allocator import DEFAULT_POOL, AllocatorConfig, PoolId
from ebbtide.vgpu.allocator.sizes import SMALL_SEGMENT, SMALL_SIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class StartState:
    """What there was before the first event of a record.

    Attributes:
        segments: the segments with their blocks, as a snapshot would show them.
        open_sizes: addresses of blocks that may be larger than they appear here, by the
            beginning of the cached block that follows.
    """

    segments: tuple[SnapshotSegment, ...]
    open_sizes: frozenset[int]

    def with_size(self, address: int, size: int) -> StartState:
        """The same, but that the block in use at `address` has `size` bytes."""
        segments = tuple(
            replace(segment, blocks=_enlarge(segment.blocks, address, size))
            if segment.address <= address < segment.address + segment.size
            else segment
            for segment in self.segments
        )
        return StartState(segments=segments, open_sizes=self.open_sizes)


def _enlarge(
    blocks: tuple[SnapshotBlock, ...], address: int, size: int
) -> tuple[SnapshotBlock, ...]:
    changed = list(blocks)
    for index, block in enumerate(blocks[:-1]):
        if block.address == address:
            following = blocks[index + 1]
            grown = size - block.size
            changed[index] = block._replace(size=size)
            changed[index + 1] = following._replace(
                address=following.address + grown, size=following.size - grown
            )
    return tuple(changed)


def rewind(record: DeviceRecord, config: AllocatorConfig) -> StartState:
    """The segments and their blocks before the first event of `record`.

    Raises:
        SnapshotError: the events contradict the segments, or segments are missing.
    """
    state = _State(record, config)
    undo = {
        Action.ALLOC: state.undo_alloc,
        Action.FREE_REQUESTED: state.undo_free_requested,
        Action.FREE_COMPLETED: state.undo_free_completed,
        Action.SEGMENT_ALLOC: state.undo_gain,
        Action.SEGMENT_MAP: state.undo_gain,
        Action.SEGMENT_FREE: state.undo_loss,
        Action.SEGMENT_UNMAP: state.undo_loss,
    }
    for index in range(len(record.events) - 1, -1, -1):
        entry = record.events[index]
        step = undo.get(entry.action)
        if step is not None:
            state.index = index
            step(entry)
    return state.result()


class _Live:
    """A block in use; `exact` once its size is known and not only its least size."""

    __slots__ = ("address", "exact", "requested", "size", "waiting")

    def __init__(self, address: int, size: int, requested: int, *, exact: bool) -> None:
        self.address = address
        self.size = size
        self.requested = requested
        self.exact = exact
        self.waiting = False


class _Region:
    """Memory taken from the driver: a segment, or a mapped stretch of an expandable one."""

    __slots__ = ("address", "expandable", "pool_id", "size", "small", "stream")

    def __init__(
        self,
        address: int,
        size: int,
        stream: int,
        *,
        small: bool,
        pool_id: PoolId,
        expandable: bool,
    ) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.small = small
        self.pool_id = pool_id
        self.expandable = expandable

    @property
    def end(self) -> int:
        return self.address + self.size

    def like(self, address: int, size: int) -> _Region:
        return _Region(
            address,
            size,
            self.stream,
            small=self.small,
            pool_id=self.pool_id,
            expandable=self.expandable,
        )


class _State:
    """The allocator at one moment of the record, in order of addresses."""

    def __init__(self, record: DeviceRecord, config: AllocatorConfig) -> None:
        self.device = record.device
        self.config = config
        self.index = len(record.events)
        self.has_requests = any(e.action is Action.FREE_REQUESTED for e in record.events)
        self.lacks_requests = False
        self.regions: dict[int, _Region] = {}
        self.region_starts: list[int] = []
        self.live: dict[int, _Live] = {}
        self.live_starts: list[int] = []
        for segment in record.segments:
            self.add_region(
                _Region(
                    segment.address,
                    segment.size,
                    segment.stream,
                    small=segment.small,
                    pool_id=segment.pool_id,
                    expandable=segment.expandable,
                )
            )
            for block in segment.blocks:
                if block.state is not BlockState.INACTIVE:
                    live = _Live(block.address, block.size, block.requested, exact=True)
                    live.waiting = block.state is BlockState.PENDING
                    self.live[block.address] = live
        self.live_starts = sorted(self.live)

    def contradiction(self, entry: TraceEntry, why: str) -> SnapshotError:
        return SnapshotError(
            f"event {self.index} of device {self.device}, {entry.action.name.lower()} of "
            f"{entry.size} bytes at {entry.address:#x}, contradicts the segments: {why}. "
            "The record cannot be replayed: segments or events are missing."
        )

    # -- blocks

    def undo_alloc(self, entry: TraceEntry) -> None:
        live = self.live.pop(entry.address, None)
        if live is None:
            raise self.contradiction(entry, "no block is in use there afterwards")
        # Made and freed in the record, but never asked to be: the record leaves that out.
        self.lacks_requests |= live.waiting and not self.has_requests
        del self.live_starts[bisect_left(self.live_starts, entry.address)]

    def undo_free_requested(self, entry: TraceEntry) -> None:
        live = self.live.get(entry.address)
        if live is None:
            raise self.contradiction(entry, "the free was never completed")
        live.waiting = False

    def undo_free_completed(self, entry: TraceEntry) -> None:
        region = self.region_at(entry.address)
        if region is None:
            raise self.contradiction(entry, "no segment has this address")
        least = self.config.round_size(entry.size)
        exact = region.small or region.expandable or self.config.expandable_segments
        live = _Live(entry.address, least, entry.size, exact=exact)
        live.waiting = True
        place = bisect_left(self.live_starts, entry.address)
        limit = region.end
        if place < len(self.live_starts):
            limit = min(limit, self.live_starts[place])
        if entry.address + least > limit:
            raise self.contradiction(entry, "it overlaps another block or its segment's end")
        if not exact:
            self.settle(live, limit)
        if place:
            before = self.live[self.live_starts[place - 1]]
            if before.address + before.size > entry.address:
                raise self.contradiction(entry, "it overlaps another block")
            if not before.exact:
                self.settle(before, entry.address)
        self.live[entry.address] = live
        self.live_starts.insert(place, entry.address)

    def settle(self, live: _Live, limit: int) -> None:
        """See whether the gap up to `limit` shows how large `live` really is."""
        gap = limit - (live.address + live.size)
        whole = live.size >= self.config.max_split_size
        if gap <= SMALL_SIZE or (whole and gap <= self.config.max_non_split_rounding_size):
            live.size += gap
            live.exact = True

    # -- memory from the driver

    def region_at(self, address: int) -> _Region | None:
        place = bisect_right(self.region_starts, address) - 1
        if place < 0:
            return None
        region = self.regions[self.region_starts[place]]
        return region if address < region.end else None

    def add_region(self, region: _Region) -> None:
        self.regions[region.address] = region
        insort(self.region_starts, region.address)

    def drop_region(self, region: _Region) -> None:
        del self.regions[region.address]
        del self.region_starts[bisect_left(self.region_starts, region.address)]

    def in_use(self, begin: int, end: int) -> bool:
        place = bisect_left(self.live_starts, begin)
        if place < len(self.live_starts) and self.live_starts[place] < end:
            return True
        if place == 0:
            return False
        before = self.live[self.live_starts[place - 1]]
        return before.address + before.size > begin

    def undo_gain(self, entry: TraceEntry) -> None:
        begin, end = entry.address, entry.address + entry.size
        region = self.region_at(begin)
        whole = entry.action is Action.SEGMENT_ALLOC
        if region is None or region.end < end or (whole and region.size != entry.size):
            raise self.contradiction(entry, "the snapshot has no such segment afterwards")
        if self.in_use(begin, end):
            raise self.contradiction(entry, "a block in it was in use before")
        self.drop_region(region)
        if region.address < begin:
            self.add_region(region.like(region.address, begin - region.address))
        if end < region.end:
            self.add_region(region.like(end, region.end - end))

    def undo_loss(self, entry: TraceEntry) -> None:
        begin, end = entry.address, entry.address + entry.size
        place = bisect_left(self.region_starts, begin)
        overlap = self.region_at(begin) is not None
        if overlap or (place < len(self.region_starts) and self.region_starts[place] < end):
            raise self.contradiction(entry, "the memory was not given back")
        region = _Region(
            begin,
            entry.size,
            entry.stream,
            small=self.is_small(entry),
            pool_id=entry.pool_id or DEFAULT_POOL,
            expandable=entry.action is Action.SEGMENT_UNMAP,
        )
        if region.expandable:
            region = self.joined(region)
        self.add_region(region)

    def joined(self, region: _Region) -> _Region:
        """`region` with the mapped stretches that touch it taken in."""
        for other in (self.region_at(region.address - 1), self.region_at(region.end)):
            if other is not None and other.expandable and other.stream == region.stream:
                self.drop_region(other)
                start = min(region.address, other.address)
                region = other.like(start, region.size + other.size)
        return region

    def is_small(self, entry: TraceEntry) -> bool:
        if entry.action is Action.SEGMENT_FREE:
            return entry.size == SMALL_SEGMENT
        for other in (
            self.region_at(entry.address - 1),
            self.region_at(entry.address + entry.size),
        ):
            if other is not None and other.expandable and other.stream == entry.stream:
                return other.small
        return entry.size % self.config.large_segment_size != 0

    # -- the result

    def result(self) -> StartState:
        segments = tuple(self.segment(self.regions[start]) for start in self.region_starts)
        open_sizes = frozenset(
            before.address
            for segment in segments
            for before, after in pairwise(segment.blocks)
            if after.state is BlockState.INACTIVE
            and before.state is not BlockState.INACTIVE
            and not self.live[before.address].exact
        )
        return StartState(segments=segments, open_sizes=open_sizes)

    def segment(self, region: _Region) -> SnapshotSegment:
        first = bisect_left(self.live_starts, region.address)
        last = bisect_left(self.live_starts, region.end)
        blocks = []
        at = region.address
        for start in self.live_starts[first:last]:
            live = self.live[start]
            if start > at:
                blocks.append(SnapshotBlock(at, start - at, 0, BlockState.INACTIVE))
            waits = live.waiting and not self.lacks_requests
            state = BlockState.PENDING if waits else BlockState.ALLOCATED
            blocks.append(SnapshotBlock(start, live.size, live.requested, state))
            at = start + live.size
        if at < region.end:
            blocks.append(SnapshotBlock(at, region.end - at, 0, BlockState.INACTIVE))
        return SnapshotSegment(
            device=self.device,
            address=region.address,
            size=region.size,
            stream=region.stream,
            small=region.small,
            pool_id=region.pool_id,
            expandable=region.expandable,
            blocks=tuple(blocks),
        )
