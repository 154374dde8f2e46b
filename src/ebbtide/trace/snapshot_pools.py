"""Which pool a recorded request went to, and whether its segments could grow."""

from __future__ import annotations

from bisect import bisect_right

from ebbtide.trace.snapshot_types import Action, DeviceRecord, TraceEntry
from ebbtide.vgpu.allocator import DEFAULT_POOL, AllocatorConfig, PoolId

_GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)


class RecordedPools:
    """Pools of one device's record.

    Neither is always in the record. The private pool is that of the segment at the
    recorded address where the entry does not name it. `expandable_segments` can be
    switched while a program runs, and does not hold for private pools with an allocator
    of their own: how a pool last took memory shows what is in force for it.
    """

    def __init__(self, record: DeviceRecord, config: AllocatorConfig) -> None:
        self._segments = record.segments
        self._starts = [segment.address for segment in record.segments]
        self._private = any(s.pool_id != DEFAULT_POOL for s in record.segments)
        self._default = config.expandable_segments
        self._expandable: dict[PoolId, bool] = {}
        kinds = set()
        for segment in record.segments:
            if segment.expandable or segment.pool_id != DEFAULT_POOL:
                before = self._expandable.get(segment.pool_id, False)
                self._expandable[segment.pool_id] = before or segment.expandable
        first: dict[PoolId, bool] = {}
        for entry in record.events:
            if entry.action in _GROWTH:
                grows = entry.action is Action.SEGMENT_MAP
                kinds.add(grows)
                first.setdefault(self.of(entry), grows)
        self._expandable |= first
        flags = {*kinds, *self._expandable.values(), self._default}
        self.mixed = len(flags) > 1

    def of(self, entry: TraceEntry) -> PoolId:
        """The pool that `entry` belongs to."""
        if entry.pool_id is not None:
            return entry.pool_id
        if self._private:
            place = bisect_right(self._starts, entry.address) - 1
            if place >= 0:
                segment = self._segments[place]
                if entry.address < segment.address + segment.size:
                    return segment.pool_id
        return DEFAULT_POOL

    def note(self, entry: TraceEntry) -> None:
        """Remember how a pool takes memory now."""
        self._expandable[self.of(entry)] = entry.action is Action.SEGMENT_MAP

    def expandable(self, pool_id: PoolId) -> bool:
        """Whether expandable segments are in force for a pool now."""
        return self._expandable.get(pool_id, self._default)
