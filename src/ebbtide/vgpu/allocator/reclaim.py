"""Three ways in which cached memory goes back to the driver.

Source: `release_available_cached_blocks`, `release_cached_blocks` and
`garbage_collect_cached_blocks` of pytorch/pytorch's
`c10/cuda/CUDACachingAllocator.cpp` (2.5 to 2.14).
"""

from __future__ import annotations

from ebbtide.vgpu.allocator.blocks import Pool
from ebbtide.vgpu.allocator.expandable import unmap_pages
from ebbtide.vgpu.allocator.heap import Heap
from ebbtide.vgpu.allocator.sizes import UNLIMITED


def release_pool(heap: Heap, pool: Pool) -> None:
    """Return every cached whole segment of `pool`, and unmap its cached pages."""
    to_unmap = []
    for block in pool.cached():
        if block.reservation is not None:
            to_unmap.append(block)
        elif block.prev is None and block.next is None:
            heap.release(block)
    for block in to_unmap:
        unmap_pages(heap, block)


def release_oversize(heap: Heap, pool: Pool, size: int, stream: int) -> bool:
    """Return so many segments above `max_split_size` as a request of `size` bytes needs.

    Returns:
        Whether enough was returned to try again; False where no limit is configured.
    """
    limit = heap.config.max_split_size
    if limit == UNLIMITED:
        return False
    needed = max(size, limit)
    free = pool.free.get(stream)
    if free is None:
        return False
    index = free.find(needed)
    if index < len(free) and free.block(index).reservation is None:
        heap.release(free.block(index))
        return True
    released = 0
    for block in reversed(list(free)[:index]):
        if released >= needed or block.size < limit:
            break
        if block.reservation is None:
            released += block.size
            heap.release(block)
    return released >= needed


def collect_garbage(heap: Heap, allowed_bytes: int) -> None:
    """Return old whole segments of the large pool once the threshold is passed.

    The threshold is a share of `allowed_bytes`, which this process may reserve.
    """
    threshold = int(heap.config.garbage_collection_threshold * allowed_bytes)
    reserved = heap.total.reserved_bytes.current
    if reserved <= threshold:
        return
    target = reserved - threshold
    pool = heap.pools[(0, 0)][1]
    candidates = [block for block in pool.cached() if not block.split]
    total_age = sum(pool.searches - block.age_base for block in candidates)
    count = len(candidates)
    reclaimed = 0
    progress = True
    while reclaimed < target and progress and count:
        age_limit = total_age / count
        progress = False
        for block in list(candidates):
            age = pool.searches - block.age_base
            if age < age_limit or block.reservation is not None:
                continue
            progress = True
            reclaimed += block.size
            total_age -= age
            count -= 1
            candidates.remove(block)
            heap.release(block)
