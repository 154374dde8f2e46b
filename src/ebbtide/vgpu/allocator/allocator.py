"""CUDA's caching allocator as PyTorch runs it, modelled exactly and without a device.

Source: `DeviceCachingAllocator` of pytorch/pytorch's
`c10/cuda/CUDACachingAllocator.cpp` (2.5 to 2.14), read and modelled, not copied.
Checked by replaying snapshots of real devices, address by address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ebbtide.vgpu.allocator import expandable, reclaim
from ebbtide.vgpu.allocator.blocks import DEFAULT_POOL, Block, Pool, PoolId, TieBreak
from ebbtide.vgpu.allocator.config import AllocatorConfig
from ebbtide.vgpu.allocator.driver import Driver, VirtualDriver
from ebbtide.vgpu.allocator.heap import Heap
from ebbtide.vgpu.allocator.oom import MemoryFigures, OutOfMemory
from ebbtide.vgpu.allocator.sizes import MIN_BLOCK, SMALL_SIZE, round_size

RecordEvent = Callable[[int], Any]
EventDone = Callable[[Any], bool]


class CachingAllocator:
    """One device's caching allocator.

    Args:
        total_bytes: the device's memory, None for a device without a limit.
        config: the settings of ``PYTORCH_ALLOC_CONF``.
        other_bytes: what is taken before the allocator starts: other processes and
            this process's CUDA context.
        context_bytes: the part of `other_bytes` that is this process's own.
        fraction: `set_per_process_memory_fraction`; by default the configured one.
        driver: where segments come from; by default one that hands out `total_bytes`
            less `other_bytes`.
        record_event: called with a stream where torch records an event on it; what it
            returns is given to `event_done`.
        event_done: whether a recorded event has completed. Without it, every event
            has completed by the next request.
        device: the device's index, for the message of `OutOfMemory`.
        tie_break: which of several equally good blocks is taken; by default as in
            torch 2.13.
    """

    def __init__(
        self,
        total_bytes: int | None,
        *,
        config: AllocatorConfig | None = None,
        other_bytes: int = 0,
        context_bytes: int = 0,
        fraction: float | None = None,
        driver: Driver | None = None,
        record_event: RecordEvent | None = None,
        event_done: EventDone | None = None,
        device: int = 0,
        tie_break: TieBreak = TieBreak.SEGMENT_AGE,
    ) -> None:
        self.config = config if config is not None else AllocatorConfig()
        self.total_bytes = total_bytes
        self.other_bytes = other_bytes
        self.context_bytes = context_bytes
        self.device = device
        self.allowed_bytes: int | None = None
        if fraction is None:
            fraction = self.config.per_process_memory_fraction
        if driver is None:
            driver = VirtualDriver(
                None if total_bytes is None else max(0, total_bytes - other_bytes)
            )
        self.heap = Heap(driver, self.config, tie_break)
        self.set_memory_fraction(fraction)
        self._record_event = record_event
        self._event_done = event_done
        self._events: dict[int, deque[tuple[Any, Block]]] = {}
        self._current_pools: list[PoolId] = []
        self._users: dict[PoolId, int] = {}
        self._small, self._large = self.heap.pools[DEFAULT_POOL]
        self._divisions = self.config.roundup_power2_divisions
        self._max_split = self.config.max_split_size

    # -- requests

    def malloc(self, nbytes: int, stream: int = 0) -> Block:
        """An allocation of `nbytes` bytes for use on `stream`.

        As in torch, an empty request gets no memory: a block of size 0 at address 0.

        Raises:
            OutOfMemory: nothing is left, with torch's message.
        """
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError(f"a request of {nbytes} bytes")
            return Block(0, 0, stream, self._small)
        size = round_size(nbytes, self._divisions) if self._divisions else (nbytes + 511) & -512
        if self._events:
            self.process_events()
        if self._current_pools:
            pool = self.heap.pools[self._current_pools[-1]][0 if size <= SMALL_SIZE else 1]
        else:
            pool = self._small if size <= SMALL_SIZE else self._large
        block = self.heap.take(pool, size, stream)
        if block is None:
            block = self._grow(pool, size, stream)
        return self._hand_out(block, size, nbytes)

    def malloc_in(
        self, nbytes: int, stream: int, pool_id: PoolId, *, afresh: bool = False
    ) -> Block:
        """An allocation from the pool `pool_id`, or from new memory if `afresh`.

        For replaying a record: there it is known which pool a request went to, and
        whether it came back from returning memory to the driver, after which torch
        does not search its cache again.

        Raises:
            OutOfMemory: nothing is left.
        """
        size = round_size(nbytes, self._divisions)
        pool = self.heap.add_pool(pool_id)[0 if size <= SMALL_SIZE else 1]
        block = None if afresh else self.heap.take(pool, size, stream)
        if block is None:
            block = self._grow(pool, size, stream)
        return self._hand_out(block, size, nbytes)

    def _hand_out(self, block: Block, size: int, nbytes: int) -> Block:
        rest = block.size - size
        if block.pool.small or self.heap.expandable:
            split = rest >= MIN_BLOCK
        else:
            split = rest > SMALL_SIZE and size < self._max_split
        self.heap.hand_out(block, size, nbytes, split=split)
        return block

    def _grow(self, pool: Pool, size: int, stream: int) -> Block:
        heap = self.heap
        if heap.tracks_age and self.allowed_bytes is not None:
            reclaim.collect_garbage(heap, self.allowed_bytes)
        block = self._new(pool, size, stream)
        if block is None and reclaim.release_oversize(heap, pool, size, stream):
            block = self._new(pool, size, stream)
        if block is None:
            self._release_cached()
            heap.counters.num_alloc_retries += 1
            block = self._new(pool, size, stream)
        if block is None:
            heap.counters.num_ooms += 1
            raise OutOfMemory(self._figures(size), self.device)
        return block

    def _new(self, pool: Pool, size: int, stream: int) -> Block | None:
        heap = self.heap
        segment = self.config.segment_bytes(size)
        allowed = self.allowed_bytes
        if allowed is not None and heap.total.reserved_bytes.current + segment > allowed:
            return None
        if heap.expandable:
            total = self.total_bytes
            space = None if total is None else total + total // 8
            return expandable.grow(heap, pool, size, stream, space)
        return heap.add_segment(pool, segment, stream)

    def free(self, block: Block) -> None:
        """Give an allocation back.

        Raises:
            ValueError: the block is not allocated.
        """
        if block.uses:
            self.free_later(block)
            self._insert_events(block)
            return
        if not self._end_of_use(block):
            return
        first, both = block.pool.tallies
        size, requested = block.size, block.requested
        first.take_back(size, requested)
        both.take_back(size, requested)
        self.heap.put_back(block)

    def _end_of_use(self, block: Block) -> bool:
        if not block.allocated:
            if block.size == 0:
                return False
            raise ValueError(f"invalid device pointer: {block.address:#x} is not allocated")
        block.allocated = False
        if block.size >= self._max_split:
            self.heap.counters.oversize_allocations.change(-1)
        return True

    def free_later(self, block: Block) -> None:
        """Give an allocation back that other streams still use, up to `finish_free`.

        Raises:
            ValueError: the block is not allocated.
        """
        if self._end_of_use(block):
            block.waiting = True
            for tally in block.pool.tallies:
                tally.defer(block.size)

    def finish_free(self, block: Block) -> None:
        """Cache a block given back by `free_later`: no other stream uses it any more."""
        if not block.waiting:
            raise ValueError(f"{block} was not given back")
        block.waiting = False
        for tally in block.pool.tallies:
            tally.complete(block.size, block.requested)
        self.heap.note("free_completed", block.address, block.requested, block.stream)
        self.heap.put_back(block)

    # -- several streams

    def record_stream(self, block: Block, stream: int) -> None:
        """Keep `block` from being used again, once freed, before `stream` got this far."""
        if stream == block.stream or not block.allocated:
            return
        if block.uses is None:
            block.uses = set()
        block.uses.add(stream)

    def _insert_events(self, block: Block) -> None:
        uses, block.uses = block.uses, None
        for stream in sorted(uses or ()):
            event = None if self._record_event is None else self._record_event(stream)
            self._events.setdefault(stream, deque()).append((event, block))
            block.events += 1

    def process_events(self, completed: EventDone | None = None) -> None:
        """Cache the freed blocks for which every other stream got far enough.

        Args:
            completed: whether a recorded event has completed; by default what the
                constructor was given.
        """
        done = completed if completed is not None else self._event_done
        for stream in list(self._events):
            queue = self._events[stream]
            while queue and (done is None or done(queue[0][0])):
                block = queue.popleft()[1]
                block.events -= 1
                if block.events == 0:
                    self.finish_free(block)
            if not queue:
                del self._events[stream]

    # -- the cache

    def empty_cache(self) -> None:
        """Return to the driver what is cached and not part of a segment in use."""
        self._release_cached()

    def _release_cached(self) -> None:
        heap = self.heap
        heap.counters.num_sync_all_streams += 1
        self.process_events(_always)
        for pool in reversed(heap.pools[DEFAULT_POOL]):
            reclaim.release_pool(heap, pool)
        for pool_id in [p for p, users in self._users.items() if users == 0]:
            sides = heap.pools[pool_id]
            for pool in sides:
                reclaim.release_pool(heap, pool)
            if not any(pool.reserved.current for pool in sides):
                del heap.pools[pool_id], self._users[pool_id]

    # -- private pools

    def begin_pool(self, pool_id: PoolId) -> None:
        """Serve requests from a private pool from now on: `torch.cuda.use_mem_pool`."""
        self.heap.add_pool(pool_id)
        self._users[pool_id] = self._users.get(pool_id, 0) + 1
        self._current_pools.append(pool_id)

    def end_pool(self, pool_id: PoolId) -> None:
        """Stop serving requests from a private pool; its memory stays in it."""
        if pool_id not in self._current_pools:
            raise ValueError(f"endAllocatePool: not currently recording to mempool_id {pool_id}")
        self._current_pools.remove(pool_id)

    def release_pool(self, pool_id: PoolId) -> None:
        """A user of a private pool is gone; without users, its cached memory may be returned."""
        if self._users.get(pool_id, 0) < 1:
            raise ValueError(f"the private pool {pool_id} has no user")
        self._users[pool_id] -= 1

    # -- settings

    def set_expandable_segments(self, on: bool) -> None:
        """`torch.cuda.memory._set_allocator_settings("expandable_segments:...")`."""
        self.heap.expandable = on

    def set_memory_fraction(self, fraction: float) -> None:
        """`torch.cuda.set_per_process_memory_fraction`.

        Raises:
            ValueError: the fraction is not within 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        self.allowed_bytes = None
        if fraction < 1 and self.total_bytes is not None:
            self.allowed_bytes = int(fraction * self.total_bytes)
        threshold = self.config.garbage_collection_threshold
        self.heap.tracks_age = self.allowed_bytes is not None and threshold > 0

    # -- figures

    def memory_allocated(self) -> int:
        """Bytes handed out."""
        return self.heap.total.bytes

    def max_memory_allocated(self) -> int:
        """The most bytes handed out since the last `reset_peak_stats`."""
        return self.heap.total.bytes_peak

    def memory_reserved(self) -> int:
        """Bytes taken from the driver."""
        return self.heap.total.reserved_bytes.current

    def max_memory_reserved(self) -> int:
        """The most bytes taken from the driver since the last `reset_peak_stats`."""
        return self.heap.total.reserved_bytes.peak

    def memory_free(self) -> int | None:
        """Bytes that the driver has left, as `cudaMemGetInfo` says; None without a limit."""
        if self.total_bytes is None:
            return None
        return max(0, self.total_bytes - self.other_bytes - self.memory_reserved())

    def largest_free_block(self) -> int:
        """Bytes of the largest cached block: the largest request without new memory."""
        sets = [
            free
            for sides in self.heap.pools.values()
            for pool in sides
            for free in pool.free.values()
        ]
        return max((free.block(-1).size for free in sets if len(free)), default=0)

    def unallocated_bytes(self) -> int:
        """Bytes reserved but not handed out: cached, fragmented or waiting for streams."""
        return self.memory_reserved() - self.memory_allocated()

    def reset_peak_stats(self) -> None:
        """Let every peak be what is there now."""
        for part in (self.heap.total, self.heap.small, self.heap.large, self.heap.counters):
            part.reset_peak()

    def reset_accumulated_stats(self) -> None:
        """Forget every sum and count."""
        for part in (self.heap.total, self.heap.small, self.heap.large, self.heap.counters):
            part.reset_accumulated()

    def stats(self) -> dict[str, Any]:
        """Every statistic, nested as `torch.cuda.memory_stats_as_nested_dict`."""
        heap, counters = self.heap, self.heap.counters
        parts = {
            "all": heap.total.as_dict(),
            "large_pool": heap.large.as_dict(),
            "small_pool": heap.small.as_dict(),
        }
        nested: dict[str, Any] = {
            name: {part: figures[name] for part, figures in parts.items()} for name in parts["all"]
        }
        nested["oversize_allocations"] = counters.oversize_allocations.as_dict()
        nested["oversize_segments"] = counters.oversize_segments.as_dict()
        nested["max_split_size"] = -1 if self._max_split >> 63 else self._max_split
        for name in (
            "num_alloc_retries",
            "num_ooms",
            "num_sync_all_streams",
            "num_device_alloc",
            "num_device_free",
        ):
            nested[name] = getattr(counters, name)
        return nested

    def _figures(self, size: int) -> MemoryFigures:
        total = self.heap.total
        reserved = total.reserved_bytes.current
        private = sum(
            block.size
            for pool_id, sides in self.heap.pools.items()
            if pool_id != DEFAULT_POOL
            for pool in sides
            for block in pool.cached()
        )
        limit = self.total_bytes if self.total_bytes is not None else 0
        return MemoryFigures(
            asked=self.config.segment_bytes(size),
            total=limit,
            free=self.memory_free() or 0,
            process=self.context_bytes + reserved,
            allowed=self.allowed_bytes,
            allocated=total.bytes,
            private_cached=private,
            reserved=reserved,
        )


def _always(event: Any) -> bool:
    return True
