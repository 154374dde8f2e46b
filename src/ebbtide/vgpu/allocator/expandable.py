"""Expandable segments: address space of which pages are mapped where they are needed.

Source: `ExpandableSegment`, `find_expandable_block`, `map_block` and `unmap_block` of
pytorch/pytorch's `c10/cuda/CUDACachingAllocator.cpp` (2.5 to 2.14).
"""

from __future__ import annotations

from ebbtide.vgpu.allocator.blocks import Block, FreeSet, Pool, Reservation
from ebbtide.vgpu.allocator.heap import Heap, room
from ebbtide.vgpu.allocator.sizes import SMALL_SEGMENT


def grow(heap: Heap, pool: Pool, size: int, stream: int, space: int | None) -> Block | None:
    """Map pages until a free block of `size` bytes is there, and take it.

    A new reservation gets `space` bytes of addresses, plenty if that is None. If the
    driver has no memory there is no block, and what was mapped until then stays.
    """
    candidate = _find(heap, pool, size, stream, space)
    if not candidate.mapped and not map_pages(heap, candidate, min(candidate.size, size)):
        return None
    while candidate.size < size:
        following = candidate.next
        if following is None:
            return None
        missing = min(size - candidate.size, following.size)
        if not map_pages(heap, following, missing):
            return None
        candidate = following
    pool.free[stream].remove(candidate)
    return candidate


def _find(heap: Heap, pool: Pool, size: int, stream: int, space: int | None) -> Block:
    # The lowest address at which free and unmapped stretches in a row are large enough.
    for unmapped in pool.unmapped.get(stream, ()):
        start = unmapped
        if start.prev is not None and not start.prev.busy:
            start = start.prev
        found = 0
        at: Block | None = start
        while at is not None and found < size and not at.busy:
            found += at.size
            at = at.next
        if found >= size:
            return start
    page = SMALL_SEGMENT if pool.small else heap.config.large_segment_size
    base, reserved = heap.driver.reserve(space, page)
    block = Block(base, reserved, stream, pool)
    block.mapped = False
    block.reservation = Reservation(base, reserved, page)
    block.order = heap.next_order()
    pool.add_unmapped(block)
    return block


def limit_space(heap: Heap, pool: Pool, size: int, stream: int) -> None:
    """Cut the address space left in `pool`, so that a request of `size` bytes needs new.

    For replaying a record: how much space a reservation has is not recorded, but where
    the next one begins is.
    """
    for tail in list(pool.unmapped.get(stream, ())):
        before = tail.prev
        held = before.size if before is not None and not before.busy else 0
        page = heap.config.large_segment_size if tail.reservation is None else tail.reservation.page
        most = max(0, size - held - 1) // page * page
        if tail.next is not None or tail.size <= most:
            continue
        if most or before is None:
            tail.size = max(most, page)
        else:
            pool.remove_unmapped(tail)
            before.next = None


def limit_by_choice(free: FreeSet, first: int, chosen: int) -> None:
    """Cut address space so that the search from `first` on ends at `chosen`.

    For replaying a record, as `limit_space`: a block that could grow a lot is passed over,
    so which block was taken shows how far others can grow.
    """
    for index in range(first, chosen):
        following = free.block(index + 1)
        if room(following) >= room(free.block(index)):
            _cut(following, room(free.block(index)) - following.size - 1)
    block = free.block(chosen)
    if chosen + 1 < len(free) and room(free.block(chosen + 1)) < room(block):
        _cut(block, room(free.block(chosen + 1)) - block.size)


def _cut(block: Block, most: int) -> None:
    tail, reservation = block.next, block.reservation
    if tail is None or reservation is None or tail.mapped or tail.next is not None:
        return
    pages = most // reservation.page
    if pages > 0:
        tail.size = min(tail.size, pages * reservation.page)


def map_pages(heap: Heap, block: Block, size: int) -> bool:
    """Map the first `size` bytes of an unmapped block, in whole pages, and cache them.

    Returns:
        False if the driver has no memory; then nothing has changed.
    """
    reservation = block.reservation
    if reservation is None:
        raise ValueError(f"{block} is no part of an expandable segment")
    mapped = -(-size // reservation.page) * reservation.page
    address = block.address
    if not heap.driver.map(address, mapped):
        return False
    pool = block.pool
    pool.remove_unmapped(block)
    block.mapped = True
    if mapped < block.size:
        rest = Block(address + mapped, block.size - mapped, block.stream, pool)
        rest.mapped = False
        rest.reservation = reservation
        rest.order = heap.part_order(block)
        rest.insert_after(block, block.next)
        block.size = mapped
        pool.add_unmapped(rest)
    heap.merge(block, block.prev)
    heap.merge(block, block.next)
    heap.cache(block)
    heap.count_reserved(pool, mapped)
    heap.note("segment_map", address, mapped, block.stream)
    return True


def unmap_pages(heap: Heap, block: Block) -> None:
    """Give back the whole pages inside a cached block; the ends of it stay cached."""
    reservation = block.reservation
    if reservation is None:
        raise ValueError(f"{block} is no part of an expandable segment")
    page, base = reservation.page, reservation.base
    begin = base + -(-(block.address - base) // page) * page
    end = base + (block.address + block.size - base) // page * page
    if begin >= end:
        return
    unmap_range(heap, block, begin, end)


def unmap_range(heap: Heap, block: Block, begin: int, end: int) -> None:
    """Give back ``[begin, end)``, whole pages inside a cached block.

    With the last page of a reservation its addresses are given back too.
    """
    pool, stream = block.pool, block.stream
    pool.free[stream].remove(block)
    if begin > block.address:
        before = Block(block.address, begin - block.address, stream, pool)
        before.reservation = block.reservation
        before.order = heap.part_order(block)
        before.insert_after(block.prev, block)
        heap.cache(before)
    stop = block.address + block.size
    if stop > end:
        after = Block(end, stop - end, stream, pool)
        after.reservation = block.reservation
        after.order = heap.part_order(block)
        after.insert_after(block, block.next)
        heap.cache(after)
    heap.driver.unmap(begin, end - begin)
    block.address = begin
    block.size = end - begin
    block.mapped = False
    heap.merge(block, block.prev)
    heap.merge(block, block.next)
    pool.add_unmapped(block)
    heap.count_reserved(pool, begin - end)
    heap.note("segment_unmap", begin, end - begin, stream)
    if block.prev is None and block.next is None:
        pool.remove_unmapped(block)
        heap.driver.unreserve(block.address, block.size)
