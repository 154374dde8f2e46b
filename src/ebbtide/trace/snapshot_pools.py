"""Which pool a recorded request went to, and whether its segments could grow."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ebbtide.trace.snapshot_types import Action, DeviceRecord, SnapshotSegment, TraceEntry
from ebbtide.vgpu.allocator import DEFAULT_POOL, AllocatorConfig, PoolId

_GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)


class RecordedPools:
    """Pools of one device's record, as the replay goes through it.

    Neither is always in the record. The private pool is that of the segment at the
    recorded address where the entry does not name it; a segment that was returned
    before the snapshot was taken is taken to be of the common pool.
    `expandable_segments` can be switched while a program runs, and does not hold for
    private pools with an allocator of their own: how a pool last took memory shows
    what is in force for it.
    """

    def __init__(
        self, record: DeviceRecord, config: AllocatorConfig, start: Sequence[SnapshotSegment]
    ) -> None:
        self._default = config.expandable_segments
        self._private = any(s.pool_id != DEFAULT_POOL for s in record.segments)
        self._taken = self._pools_of_growth(record) if self._private else {}
        # Where memory begins, where it ends, and whose it is.
        self._starts = [segment.address for segment in start]
        self._ends = {s.address: (s.address + s.size, s.pool_id) for s in start}
        self._expandable = {s.pool_id: False for s in record.segments if s.pool_id != DEFAULT_POOL}
        self._expandable |= {s.pool_id: True for s in record.segments if s.expandable}
        first: dict[PoolId, bool] = {}
        kinds = set()
        for index, entry in enumerate(record.events):
            if entry.action in _GROWTH:
                grows = entry.action is Action.SEGMENT_MAP
                kinds.add(grows)
                first.setdefault(self.of_growth(entry, index), grows)
        self._expandable |= first
        self.mixed = len({*kinds, *self._expandable.values(), self._default}) > 1

    def _pools_of_growth(self, record: DeviceRecord) -> dict[int, PoolId]:
        """The pool of each event that takes memory, from what became of that memory."""
        pools: dict[int, PoolId] = {}
        later = {s.address: s.pool_id for s in record.segments}
        for index in range(len(record.events) - 1, -1, -1):
            entry = record.events[index]
            if entry.action is Action.SEGMENT_ALLOC:
                pools[index] = later.pop(entry.address, DEFAULT_POOL)
            elif entry.action is Action.SEGMENT_FREE:
                later[entry.address] = entry.pool_id or DEFAULT_POOL
            elif entry.action is Action.SEGMENT_MAP:
                pools[index] = next(
                    (
                        s.pool_id
                        for s in record.segments
                        if s.expandable and s.address <= entry.address < s.address + s.size
                    ),
                    DEFAULT_POOL,
                )
        return pools

    def of(self, entry: TraceEntry) -> PoolId:
        """The pool that `entry`, the event underway, belongs to."""
        if entry.pool_id is not None:
            return entry.pool_id
        if self._private:
            place = bisect_right(self._starts, entry.address) - 1
            if place >= 0:
                end, pool_id = self._ends[self._starts[place]]
                if entry.address < end:
                    return pool_id
        return DEFAULT_POOL

    def of_growth(self, entry: TraceEntry, index: int) -> PoolId:
        """The pool for which the event at `index` takes memory."""
        return entry.pool_id or self._taken.get(index, DEFAULT_POOL)

    def note(self, entry: TraceEntry, index: int) -> None:
        """Follow an event that takes or returns memory; `index` is its place in the record."""
        begin, end = entry.address, entry.address + entry.size
        if entry.action in _GROWTH:
            pool_id = self.of_growth(entry, index)
            self._expandable[pool_id] = entry.action is Action.SEGMENT_MAP
            if self._private:
                if begin not in self._ends:
                    self._starts.insert(bisect_left(self._starts, begin), begin)
                self._ends[begin] = (end, pool_id)
        elif entry.action is Action.SEGMENT_FREE and begin in self._ends:
            del self._ends[begin]
            del self._starts[bisect_left(self._starts, begin)]

    def expandable(self, pool_id: PoolId) -> bool:
        """Whether expandable segments are in force for a pool now."""
        return self._expandable.get(pool_id, self._default)
