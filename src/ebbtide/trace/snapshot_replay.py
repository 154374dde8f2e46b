"""Replay the record of a snapshot through the allocator model, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.trace.rewind import StartState, rewind
from ebbtide.trace.snapshot_ages import UnknownAges
from ebbtide.trace.snapshot_driver import RecordedDriver
from ebbtide.trace.snapshot_heap import load_segments
from ebbtide.trace.snapshot_pools import RecordedPools
from ebbtide.trace.snapshot_types import Action, DeviceRecord, TraceEntry
from ebbtide.vgpu.allocator import AllocatorConfig, Block, CachingAllocator, PoolId, TieBreak
from ebbtide.vgpu.allocator.expandable import (
    limit_by_choice,
    limit_space,
    map_pages,
    unmap_range,
)
from ebbtide.vgpu.allocator.sizes import MIN_BLOCK, SMALL_SIZE

_GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_MOST_CORRECTIONS = 100
_RETURN = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReplay:
    """How the model's way through a record compares with the record.

    Attributes:
        device: its index.
        events: events of the record.
        allocations: requests in the record.
        same_address: those that the model served at the recorded address.
        segment_allocations: times that memory was taken from the driver (`cudaMalloc`,
            or the mapping of pages).
        same_segment_allocations: those that the model took too, at the same request,
            of the same size and for the same addresses.
        segment_frees: times that memory was returned to the driver.
        same_segment_frees: those for which the model held the same memory unused.
        out_of_memory: requests that failed in the record.
        peak_allocated_bytes: the most that was handed out, in the model.
        peak_reserved_bytes: the most that was taken from the driver, in the model.
        start_allocated_bytes: handed out before the first event.
        start_reserved_bytes: taken from the driver before the first event.
        end_allocated_bytes: handed out after the last event.
        end_reserved_bytes: taken from the driver after the last event.
        tie_break: the rule by which the record was replayed.
        ties_learned: choices between two blocks of unknown age that were read off the
            record (`UnknownAges`).
        sizes_learned: times that the record showed a block at the start to be larger than
            was requested for it (`StartState.open_sizes`).
        first_difference: where model and record first part, None if they never do.
    """

    device: int
    events: int
    allocations: int
    same_address: int
    segment_allocations: int
    same_segment_allocations: int
    segment_frees: int
    same_segment_frees: int
    out_of_memory: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    start_allocated_bytes: int
    start_reserved_bytes: int
    end_allocated_bytes: int
    end_reserved_bytes: int
    tie_break: TieBreak
    ties_learned: int
    sizes_learned: int
    first_difference: str | None

    @property
    def same(self) -> bool:
        """Whether the model did in everything what the device did."""
        return (
            self.same_address == self.allocations
            and self.same_segment_allocations == self.segment_allocations
            and self.same_segment_frees == self.segment_frees
        )


def replay_record(
    record: DeviceRecord,
    config: AllocatorConfig,
    tie_breaks: Sequence[TieBreak] = tuple(TieBreak),
) -> DeviceReplay:
    """Replay all events of `record` from the state before the first of them.

    Which of two equally good blocks torch takes depends on its version, which a
    snapshot does not say: of the rules `tie_breaks`, the first by which everything is
    the same is taken, else the one by which most is.

    Raises:
        SnapshotError: the record contradicts the snapshot's segments.
    """
    start = rewind(record, config)
    best: DeviceReplay | None = None
    for tie_break in tie_breaks:
        found = _replay(record, config, start, tie_break)
        if best is None or _agreement(found) > _agreement(best):
            best = found
        if found.same:
            break
    if best is None:
        raise ValueError("replay_record needs at least one rule for ties")
    return best


def _replay(
    record: DeviceRecord, config: AllocatorConfig, start: StartState, tie_break: TieBreak
) -> DeviceReplay:
    """One replay, begun anew whenever the record shows that a block was larger at the start."""
    corrections = 0
    while True:
        run = _Replay(record, config, start, tie_break, corrections)
        larger = run.run()
        if larger is None:
            return run.result()
        start = start.with_size(*larger)
        corrections += 1


def _agreement(replay: DeviceReplay) -> tuple[int, int]:
    return (replay.same_address, replay.same_segment_allocations)


class _Replay:
    """The replay of one device's record."""

    def __init__(
        self,
        record: DeviceRecord,
        config: AllocatorConfig,
        start: StartState,
        tie_break: TieBreak,
        corrections: int,
    ) -> None:
        self.record = record
        self.corrections = corrections
        self.larger: tuple[int, int] | None = None
        self.events = record.events
        self.tie_break = tie_break
        self.driver = RecordedDriver()
        # The limits of the device are the record's: it says when memory ran out.
        self.allocator = CachingAllocator(
            None,
            config=config,
            fraction=1.0,
            driver=self.driver,
            device=record.device,
            tie_break=tie_break,
        )
        self.heap = self.allocator.heap
        self.live = load_segments(self.heap, start.segments, record.events)
        self.open_sizes = (
            {self.live[address] for address in start.open_sizes}
            if corrections < _MOST_CORRECTIONS
            else set()
        )
        self.ages = UnknownAges(self.heap, self.heap.made)
        self.start = (self.allocator.memory_allocated(), self.allocator.memory_reserved())
        self.pools = RecordedPools(record, config, start.segments)
        self.ahead: tuple[tuple[Action, ...], int] = ((), -1)
        self.counts = dict.fromkeys(Action, 0)
        self.same_address = 0
        self.same_frees = 0
        self.afresh = False
        self.first_difference: str | None = None
        self.index = 0

    def run(self) -> tuple[int, int] | None:
        """Replay; or stop at a block that must have been larger: its address and size."""
        steps = {
            Action.ALLOC: self.alloc,
            Action.FREE_REQUESTED: self.free_requested,
            Action.FREE_COMPLETED: self.free_completed,
            Action.SEGMENT_ALLOC: self.grow,
            Action.SEGMENT_MAP: self.grow,
            Action.SEGMENT_FREE: self.give_back,
            Action.SEGMENT_UNMAP: self.give_back,
        }
        events, counts = self.events, self.counts
        while self.index < len(events) and self.larger is None:
            entry = events[self.index]
            counts[entry.action] += 1
            step = steps.get(entry.action)
            if step is not None:
                step(entry)
            self.index += 1
        return self.larger

    def result(self) -> DeviceReplay:
        counts, allocator = self.counts, self.allocator
        return DeviceReplay(
            device=self.record.device,
            events=len(self.events),
            allocations=counts[Action.ALLOC],
            same_address=self.same_address,
            segment_allocations=sum(counts[action] for action in _GROWTH),
            same_segment_allocations=self.driver.same,
            segment_frees=sum(counts[action] for action in _RETURN),
            same_segment_frees=self.same_frees,
            out_of_memory=counts[Action.OOM],
            peak_allocated_bytes=allocator.max_memory_allocated(),
            peak_reserved_bytes=allocator.max_memory_reserved(),
            start_allocated_bytes=self.start[0],
            start_reserved_bytes=self.start[1],
            end_allocated_bytes=allocator.memory_allocated(),
            end_reserved_bytes=allocator.memory_reserved(),
            tie_break=self.tie_break,
            ties_learned=self.ages.learned,
            sizes_learned=self.corrections,
            first_difference=self.first_difference,
        )

    def differ(self, entry: TraceEntry, what: str) -> None:
        if self.first_difference is None:
            self.first_difference = (
                f"event {self.index}, {entry.action.name.lower()} of {entry.size} bytes "
                f"at {entry.address:#x}: {what}"
            )

    # -- blocks

    def alloc(self, entry: TraceEntry) -> None:
        pool_id = self.pools.of(entry)
        if self.pools.mixed:
            self.allocator.set_expandable_segments(self.pools.expandable(pool_id))
        if self.driver.due:
            self.limit_space(entry, pool_id)
        elif self.heap.made or self.open_sizes or self.heap.expandable:
            self.settle(entry, pool_id)
        block = self.allocator.malloc_in(
            entry.size, entry.stream, pool_id, afresh=self.afresh and bool(self.driver.due)
        )
        self.afresh = False
        if block.address == entry.address:
            self.same_address += 1
        else:
            self.differ(entry, f"the model has it at {block.address:#x}")
        if self.driver.due:
            self.differ(entry, "the model takes no new memory for it")
            self.driver.due.clear()
        self.live[entry.address] = block

    def limit_space(self, entry: TraceEntry, pool_id: PoolId) -> None:
        """See whether the record maps pages where no known reservation goes on."""
        due = self.driver.due[0]
        size = self.heap.config.round_size(entry.size)
        pool = self.heap.add_pool(pool_id)[0 if size <= SMALL_SIZE else 1]
        if due.action is Action.SEGMENT_MAP and not any(
            unmapped.address == due.address for unmapped in pool.unmapped.get(entry.stream, ())
        ):
            limit_space(self.heap, pool, size, entry.stream)

    def settle(self, entry: TraceEntry, pool_id: PoolId) -> None:
        """Learn what the record shows about the start: which block is older, or larger."""
        size = self.heap.config.round_size(entry.size)
        pool = self.heap.add_pool(pool_id)[0 if size <= SMALL_SIZE else 1]
        free = pool.free.get(entry.stream)
        index = free.find(size) if free is not None else 0
        if free is None or index == len(free):
            return
        choice = self.heap.take(pool, size, entry.stream)
        if choice is None:
            return
        free.add(choice)
        if choice.address == entry.address:
            return
        best = free.block(index)
        if best.reservation is not None and self.heap.expandable:
            for chosen in range(index, len(free)):
                if free.block(chosen).address == entry.address:
                    limit_by_choice(free, index, chosen)
                    break
        before = best.prev
        if before is not None and before in self.open_sizes:
            # The cached block begins where the record has the new one, or is too small for it.
            inside = best.address < entry.address < best.address + best.size
            end = entry.address if inside else best.address + best.size - size + MIN_BLOCK
            grown = end - before.address
            if grown <= self.heap.config.round_size(before.requested) + SMALL_SIZE:
                self.larger = (before.address, grown)
                return
        while index < len(free) and free.block(index).size == best.size:
            if free.block(index).address == entry.address:
                self.ages.learn(free.block(index), best)
                return
            index += 1

    def free_requested(self, entry: TraceEntry) -> None:
        block = self.live.get(entry.address)
        if block is None or not block.allocated:
            self.differ(entry, "the model has no such block in use")
            return
        after = self.index + 1
        if after < len(self.events):
            following = self.events[after]
            if following.action is Action.FREE_COMPLETED and following.address == entry.address:
                self.counts[Action.FREE_COMPLETED] += 1
                self.index = after
                del self.live[entry.address]
                self.open_sizes.discard(block)
                self.allocator.free(block)
                return
        self.allocator.free_later(block)

    def free_completed(self, entry: TraceEntry) -> None:
        self.look_ahead()
        block = self.live.pop(entry.address, None)
        if block is None:
            self.differ(entry, "the model has no such block")
            return
        self.open_sizes.discard(block)
        if block.waiting:
            self.allocator.finish_free(block)
        else:
            self.allocator.free(block)  # the record keeps no requests to free

    # -- memory from the driver

    def next_alloc(self, *, past: tuple[Action, ...]) -> int | None:
        """Where the request is that the events from here on lead up to, if they do."""
        if self.ahead[0] != past or self.index > self.ahead[1]:
            place = self.index
            while place < len(self.events) and self.events[place].action in past:
                place += 1
            self.ahead = (past, place)
        place = self.ahead[1]
        if place < len(self.events) and self.events[place].action is Action.ALLOC:
            return place
        return None

    def look_ahead(self) -> None:
        """Before memory is returned: does the next request search the cache again?

        Torch returns memory when asked to, or when the driver has none left for a
        request that the cache cannot serve. In the second case it does not search its
        cache again. It is the second case if the cache cannot serve the request now.
        """
        place = self.next_alloc(past=(Action.FREE_COMPLETED, *_RETURN, *_GROWTH))
        if self.afresh or place is None:
            return
        request, before = self.events[place], self.events[place - 1]
        pool_id = (
            self.pools.of_growth(before, place - 1)
            if before.action in _GROWTH
            else self.pools.of(request)
        )
        size = self.heap.config.round_size(request.size)
        pool = self.heap.add_pool(pool_id)[0 if size <= SMALL_SIZE else 1]
        self.afresh = not self.heap.fits(pool, size, request.stream)

    def grow(self, entry: TraceEntry) -> None:
        self.pools.note(entry, self.index)
        if self.next_alloc(past=_GROWTH) is not None:
            self.driver.due.append(entry)
            return
        # A request that failed, or was cut off, after it had taken some memory.
        for pool in self.heap.pools.get(self.pools.of(entry), ()):
            for block in pool.unmapped.get(entry.stream, ()):
                if block.address == entry.address and block.size >= entry.size:
                    self.driver.due.append(entry)
                    map_pages(self.heap, block, entry.size)
                    self.driver.due.clear()
                    return
        self.differ(entry, "the model takes no such memory")

    def give_back(self, entry: TraceEntry) -> None:
        self.look_ahead()
        self.pools.note(entry, self.index)
        block = self.cached_at(entry)
        if block is None:
            self.differ(entry, "the model has no such memory unused")
            return
        self.same_frees += 1
        if entry.action is Action.SEGMENT_FREE:
            self.heap.release(block)
        else:
            unmap_range(self.heap, block, entry.address, entry.address + entry.size)

    def cached_at(self, entry: TraceEntry) -> Block | None:
        """The cached block of the model that holds the memory of `entry`, all of it."""
        end = entry.address + entry.size
        for sides in self.heap.pools.values():
            for pool in sides:
                free = pool.free.get(entry.stream)
                if free is None:
                    continue
                for block in free:
                    if block.address > entry.address or end > block.address + block.size:
                        continue
                    if entry.action is Action.SEGMENT_UNMAP:
                        if block.reservation is not None:
                            return block
                    elif not block.split and block.size == entry.size:
                        return block
        return None
