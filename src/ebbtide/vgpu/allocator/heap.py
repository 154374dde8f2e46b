"""The state of the allocator and its elementary steps: fit, split, merge, take, return.

Source: `DeviceCachingAllocator` of pytorch/pytorch's
`c10/cuda/CUDACachingAllocator.cpp` (2.5 to 2.14), read and modelled, not copied.
"""

from __future__ import annotations

from bisect import bisect_left

from ebbtide.vgpu.allocator.blocks import (
    DEFAULT_POOL,
    SIZE_SHIFT,
    Block,
    FreeSet,
    Pool,
    PoolId,
    TieBreak,
)
from ebbtide.vgpu.allocator.config import AllocatorConfig
from ebbtide.vgpu.allocator.driver import Driver
from ebbtide.vgpu.allocator.sizes import UNLIMITED
from ebbtide.vgpu.allocator.stats import Counters, Tally

LogEntry = tuple[str, int, int, int]
"""Action (torch's word), address, bytes, stream."""


class Heap:
    """Pools of blocks, and what is counted about them.

    Attributes:
        pools: small and large side of every private pool.
        expandable: whether expandable segments are in use now.
        active: blocks handed out or waiting for other streams.
        made: how many orders were given.
        log: where `segment_*` and other actions are noted, or None.
        tracks_age: whether garbage collection needs the age of cached blocks.
    """

    def __init__(self, driver: Driver, config: AllocatorConfig, tie_break: TieBreak) -> None:
        self.driver = driver
        self.config = config
        self.tracks_age = False
        self.total = Tally()
        self.small = Tally()
        self.large = Tally()
        self.counters = Counters()
        self.pools: dict[PoolId, tuple[Pool, Pool]] = {}
        self.active: set[Block] = set()
        self.expandable = config.expandable_segments
        self.log: list[LogEntry] | None = None
        self._by_age = tie_break is not TieBreak.ADDRESS
        self._by_block_age = tie_break is TieBreak.BLOCK_AGE
        self.made = 0
        self._limited = config.max_split_size != UNLIMITED
        self.add_pool(DEFAULT_POOL)

    def add_pool(self, pool_id: PoolId) -> tuple[Pool, Pool]:
        """The two sides of a private pool, made if it is new."""
        sides = self.pools.get(pool_id)
        if sides is None:
            sides = (
                Pool(small=True, pool_id=pool_id, tallies=(self.small, self.total)),
                Pool(small=False, pool_id=pool_id, tallies=(self.large, self.total)),
            )
            self.pools[pool_id] = sides
        return sides

    def next_order(self) -> int:
        """The order of new memory: the later, the higher; 0 where only addresses count."""
        if self._by_age:
            self.made += 1
        return self.made

    def part_order(self, whole: Block) -> int:
        """The order of a new block that is made of a part of another."""
        return self.next_order() if self._by_block_age else whole.order

    def note(self, action: str, address: int, size: int, stream: int) -> None:
        """Write an action into the log, if one is kept."""
        if self.log is not None:
            self.log.append((action, address, size, stream))

    def take(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Take the best fit for `size` bytes out of the free blocks, or None."""
        if self.tracks_age:
            pool.searches += 1
        free = pool.free.get(stream)
        if free is None:
            return None
        keys = free.keys
        index = bisect_left(keys, size << SIZE_SHIFT)
        if index == len(keys):
            return None
        key = keys[index]
        block = free.at[key]
        if block.reservation is not None:
            chosen = self._expandable_fit(free, index)
            if chosen is None:
                return None
            index, block = chosen
            key = block.key
        if self._limited and not self._fits_limit(block, size):
            return None
        del keys[index]
        del free.at[key]
        return block

    def fits(self, pool: Pool, size: int, stream: int) -> bool:
        """Whether a request of `size` bytes, rounded, would be served from the free blocks."""
        block = self.take(pool, size, stream)
        if block is None:
            return False
        pool.free[stream].add(block)
        return True

    def _expandable_fit(self, free: FreeSet, index: int) -> tuple[int, Block] | None:
        # A block at the growing end counts as large as it can grow, so that smaller
        # holes are filled first.
        block = free.block(index)
        if not self.expandable:
            for other in range(index + 1, len(free)):
                candidate = free.block(other)
                if candidate.reservation is None:
                    return other, candidate
            return None
        while block.reservation is not None and index + 1 < len(free):
            following = free.block(index + 1)
            if room(following) >= room(block):
                break
            index, block = index + 1, following
        return index, block

    def _fits_limit(self, block: Block, size: int) -> bool:
        limit = self.config.max_split_size
        if size < limit:
            return block.size < limit
        return block.size < size + self.config.max_non_split_rounding_size

    def hand_out(self, block: Block, size: int, requested: int, *, split: bool) -> None:
        """Make a block that was taken an allocation of `size` bytes, the rest cached if `split`."""
        pool = block.pool
        whole = block.prev is None and block.next is None
        if split:
            rest = Block(block.address + size, block.size - size, block.stream, pool)
            rest.reservation = block.reservation
            rest.order = block.order
            if self._by_block_age:
                block.order = self.next_order()  # in torch the part handed out is the new block
            following = block.next
            rest.prev = block
            rest.next = following
            if following is not None:
                following.prev = rest
            block.next = rest
            block.size = size
            self.cache(rest)
            if block.reservation is None:
                for tally in pool.tallies:
                    tally.change_inactive(1 if whole else 0, rest.size if whole else -size)
        elif not whole and block.reservation is None:
            for tally in pool.tallies:
                tally.change_inactive(-1, -block.size)
        block.allocated = True
        block.requested = requested
        self.active.add(block)
        size = block.size
        pool.tallies[0].hand_out(size, requested)
        pool.tallies[1].hand_out(size, requested)
        if self._limited and size >= self.config.max_split_size:
            self.counters.oversize_allocations.change(1)

    def cache(self, block: Block) -> None:
        """Put a block among the free ones."""
        pool = block.pool
        free = pool.free.get(block.stream)
        if free is None:
            free = pool.free[block.stream] = FreeSet()
        free.add(block)
        block.age_base = pool.searches

    def put_back(self, block: Block) -> None:
        """Cache a block that nobody uses any more, merged with its free neighbours."""
        self.active.discard(block)
        gone = 0
        subsumed = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None:
                size = self.merge(block, neighbour)
                if size:
                    gone += 1
                    subsumed += size
        self.cache(block)
        if block.reservation is None:
            in_parts = block.prev is not None or block.next is not None
            count = (1 if in_parts else 0) - gone
            size = (block.size if in_parts else 0) - subsumed
            if count or size:
                for tally in block.pool.tallies:
                    tally.change_inactive(count, size)

    def merge(self, block: Block, neighbour: Block | None) -> int:
        """Take a free neighbour of the same kind into `block`; its bytes, 0 if it cannot be."""
        if (
            neighbour is None
            or neighbour.allocated
            or neighbour.waiting
            or neighbour.mapped != block.mapped
        ):
            return 0
        if neighbour.mapped:
            block.pool.free[neighbour.stream].remove(neighbour)
        else:
            block.pool.remove_unmapped(neighbour)
        if block.prev is neighbour:
            block.address = neighbour.address
            block.prev = neighbour.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.prev = block
        block.size += neighbour.size
        return neighbour.size

    def count_reserved(self, pool: Pool, change: int) -> None:
        """Count bytes taken from (or, if negative, returned to) the driver."""
        pool.reserved.change(change)
        for tally in pool.tallies:
            tally.reserved_bytes.change(change)
        if change > 0:
            self.counters.num_device_alloc += 1
        else:
            self.counters.num_device_free += 1

    def add_segment(self, pool: Pool, size: int, stream: int) -> Block | None:
        """A new segment as one block that is not yet cached; None if the driver has no memory."""
        address = self.driver.malloc(size, stream)
        if address is None:
            return None
        self.count_reserved(pool, size)
        for tally in pool.tallies:
            tally.segment.change(1)
        if size >= self.config.max_split_size:
            self.counters.oversize_segments.change(1)
        self.note("segment_alloc", address, size, stream)
        block = Block(address, size, stream, pool)
        block.order = self.next_order()
        return block

    def release(self, block: Block) -> None:
        """Return a cached block that is a whole segment to the driver."""
        pool = block.pool
        pool.free[block.stream].remove(block)
        self.note("segment_free", block.address, block.size, block.stream)
        self.driver.free(block.address, block.size)
        self.count_reserved(pool, -block.size)
        for tally in pool.tallies:
            tally.segment.change(-1)
        if block.size >= self.config.max_split_size:
            self.counters.oversize_segments.change(-1)


def room(block: Block) -> int:
    """The bytes that a cached block has, or could have if it grew into what is not mapped."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)
