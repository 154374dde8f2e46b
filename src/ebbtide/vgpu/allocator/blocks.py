"""Blocks, and the ordered sets of free ones in which the best fit is found."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from enum import Enum

from ebbtide.vgpu.allocator.stats import Gauge, Tally

PoolId = tuple[int, int]
"""Which private pool: torch's `MempoolId_t`. The common pool is ``(0, 0)``."""

DEFAULT_POOL: PoolId = (0, 0)

# A free block's key is its size, its order, then its address, in one integer.
SIZE_SHIFT = 96
ORDER_SHIFT = 64


class TieBreak(Enum):
    """Which of several free blocks of the same size is taken: it changed between versions.

    Always the one at the lowest address, after this comes first:
    """

    ADDRESS = "address"
    """Nothing: torch up to 2.11."""
    BLOCK_AGE = "block age"
    """The block that was made first: torch 2.12 (pytorch/pytorch#178362)."""
    SEGMENT_AGE = "segment age"
    """The block whose segment is oldest: torch from 2.13 on (pytorch/pytorch#183591)."""

    @classmethod
    def of(cls, release: tuple[int, int]) -> TieBreak:
        """The rule of a torch release, such as ``(2, 13)``."""
        if release < (2, 12):
            return cls.ADDRESS
        return cls.BLOCK_AGE if release < (2, 13) else cls.SEGMENT_AGE


class Reservation:
    """Address space of one expandable segment, of which pages are mapped on demand.

    Attributes:
        base: first address.
        size: bytes of address space, a multiple of `page`.
        page: bytes mapped at a time.
    """

    __slots__ = ("base", "page", "size")

    def __init__(self, base: int, size: int, page: int) -> None:
        self.base = base
        self.size = size
        self.page = page


class Block:
    """A piece of a segment: handed out, cached, or (expandable segments) not mapped.

    Attributes:
        address: device address.
        size: bytes, with rounding and what was too little to split off.
        requested: bytes that were asked for; stale while the block is cached.
        stream: the stream whose pool the block belongs to.
        allocated: handed out and not yet freed.
        waiting: freed, but not to be used again before other streams got far enough.
        events: how many of those streams have not.
        order: what goes before the address among free blocks of the same size.
        key: its place in the `FreeSet` that it is in.
        uses: other streams that use the block, noted while it is handed out.
    """

    __slots__ = (
        "address",
        "age_base",
        "allocated",
        "events",
        "key",
        "mapped",
        "next",
        "order",
        "pool",
        "prev",
        "requested",
        "reservation",
        "size",
        "stream",
        "uses",
        "waiting",
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool) -> None:
        self.address = address
        self.size = size
        self.requested = 0
        self.stream = stream
        self.pool = pool
        self.allocated = False
        self.mapped = True
        self.waiting = False
        self.events = 0
        self.uses: set[int] | None = None
        self.prev: Block | None = None
        self.next: Block | None = None
        self.reservation: Reservation | None = None
        self.age_base = 0
        self.order = 0
        self.key = 0

    @property
    def busy(self) -> bool:
        """Whether the block is handed out or waits for other streams."""
        return self.allocated or self.waiting

    @property
    def split(self) -> bool:
        """Whether the block is a part of its segment only."""
        return self.prev is not None or self.next is not None

    def insert_after(self, before: Block | None, after: Block | None) -> None:
        """Stand between `before` and `after`, which are neighbours or missing."""
        self.prev = before
        self.next = after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self

    def __repr__(self) -> str:
        state = "allocated" if self.allocated else "waiting" if self.waiting else "free"
        return f"Block(address={self.address:#x}, size={self.size}, {state})"


class FreeSet:
    """Free blocks of one pool and stream, ordered by size, order and address.

    `keys` is sorted; `at` finds the block of a key.
    """

    __slots__ = ("at", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.at: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        """Put a free block in its place."""
        key = block.size << SIZE_SHIFT | block.order << ORDER_SHIFT | block.address
        while key in self.at:  # a replay that went astray can have two blocks at one address
            key += 1
        block.key = key
        self.at[key] = block
        insort(self.keys, key)

    def remove(self, block: Block) -> None:
        """Take out a block."""
        key = block.key
        del self.at[key]
        del self.keys[bisect_left(self.keys, key)]

    def find(self, size: int) -> int:
        """The index of the smallest block of at least `size` bytes; `len` if there is none."""
        return bisect_left(self.keys, size << SIZE_SHIFT)

    def block(self, index: int) -> Block:
        """The block at `index` of the order."""
        return self.at[self.keys[index]]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Block]:
        """The blocks in order, from a copy: the set may change meanwhile."""
        at = self.at
        return iter([at[key] for key in self.keys])


class Pool:
    """All that small, or large, requests of one private pool share.

    Attributes:
        small: whether this is the side for requests of at most 1 MiB.
        id: which private pool; ``(0, 0)`` is the common one.
        free: free blocks by stream.
        unmapped: unmapped stretches of expandable segments by stream, by address.
        searches: how often the pool was searched, the clock of garbage collection.
        reserved: bytes taken from the driver and not given back.
        tallies: where this pool is counted: small or large, and both together.
    """

    __slots__ = ("free", "id", "reserved", "searches", "small", "tallies", "unmapped")

    def __init__(self, *, small: bool, pool_id: PoolId, tallies: tuple[Tally, Tally]) -> None:
        self.small = small
        self.id = pool_id
        self.free: dict[int, FreeSet] = {}
        self.unmapped: dict[int, list[Block]] = {}
        self.searches = 0
        self.reserved = Gauge()
        self.tallies = tallies

    def cached(self) -> list[Block]:
        """Every free block: by stream, then size, then address, as torch walks them."""
        return [block for stream in sorted(self.free) for block in self.free[stream]]

    def add_unmapped(self, block: Block) -> None:
        """Keep an unmapped stretch, in the order of addresses."""
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address)

    def remove_unmapped(self, block: Block) -> None:
        """Forget an unmapped stretch."""
        self.unmapped[block.stream].remove(block)


def _address(block: Block) -> int:
    return block.address
