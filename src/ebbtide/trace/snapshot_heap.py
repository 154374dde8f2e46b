"""Put the state of a snapshot into the allocator model."""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide.trace.snapshot_types import Action, BlockState, SnapshotSegment, TraceEntry
from ebbtide.vgpu.allocator import Block, PoolId
from ebbtide.vgpu.allocator.blocks import Pool, Reservation
from ebbtide.vgpu.allocator.heap import Heap
from ebbtide.vgpu.allocator.sizes import SMALL_SEGMENT

UNKNOWN_SPACE = 1 << 50
"""Bytes taken for the address space of an expandable segment.

Really it is 1 1/8 of the device's memory, which a snapshot does not say; what matters
is only that it does not run out.
"""

_Space = tuple[int, bool, PoolId]


def load_segments(
    heap: Heap, segments: Iterable[SnapshotSegment], events: Iterable[TraceEntry] = ()
) -> dict[int, Block]:
    """Fill the empty `heap` with `segments`; the blocks in use by their addresses.

    `events` are what follows: they show where an expandable segment begins whose first
    pages are not mapped at the start.
    """
    live: dict[int, Block] = {}
    spaces: dict[_Space, list[SnapshotSegment]] = {}
    for segment in segments:
        if segment.expandable:
            key = (segment.stream, segment.small, segment.pool_id)
            spaces.setdefault(key, []).append(segment)
            continue
        pool = _pool(heap, segment)
        blocks = _blocks(segment, pool)
        _link(blocks)
        _give_ages(heap, blocks)
        for tally in pool.tallies:
            tally.segment.change(1)
        heap.count_reserved(pool, segment.size)
        _enter(heap, blocks, segment, live)
    bases = _bases(spaces, events)
    for key, stretches in spaces.items():
        _load_space(heap, stretches, bases[key], live)
    for part in (heap.total, heap.small, heap.large, heap.counters):
        part.reset_peak()
        part.reset_accumulated()
    return live


def _give_ages(heap: Heap, blocks: list[Block]) -> None:
    """Number the ages of a segment's blocks, as if lower addresses were older."""
    order = heap.next_order()
    for index, block in enumerate(blocks):
        block.order = heap.part_order(blocks[0]) if index else order


def _pool(heap: Heap, segment: SnapshotSegment) -> Pool:
    return heap.add_pool(segment.pool_id)[0 if segment.small else 1]


def _blocks(segment: SnapshotSegment, pool: Pool) -> list[Block]:
    return [Block(block.address, block.size, segment.stream, pool) for block in segment.blocks]


def _link(blocks: list[Block]) -> None:
    before: Block | None = None
    for block in blocks:
        block.insert_after(before, None)
        before = block


def _enter(
    heap: Heap, blocks: list[Block], segment: SnapshotSegment, live: dict[int, Block]
) -> None:
    """Count the blocks of a segment, and cache those that are not in use."""
    for block, known in zip(blocks, segment.blocks, strict=True):
        block.requested = known.requested
        tallies = block.pool.tallies
        if known.state is BlockState.INACTIVE:
            heap.cache(block)
            if block.split and block.reservation is None:
                for tally in tallies:
                    tally.change_inactive(1, block.size)
            continue
        heap.active.add(block)
        live[block.address] = block
        for tally in tallies:
            tally.hand_out(block.size, block.requested)
        if known.state is BlockState.PENDING:
            block.waiting = True
            for tally in tallies:
                tally.defer(block.size)
        else:
            block.allocated = True


def _bases(
    spaces: dict[_Space, list[SnapshotSegment]], events: Iterable[TraceEntry]
) -> dict[_Space, int]:
    """Where each expandable segment begins, as far as it can be known."""
    bases = {key: min(s.address for s in stretches) for key, stretches in spaces.items()}
    mapped = {key: sum(s.size for s in stretches) for key, stretches in spaces.items()}
    owners = {(stream, small): (stream, small, pool_id) for stream, small, pool_id in spaces}
    for entry in events:
        if entry.action not in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP):
            continue
        small = entry.size == SMALL_SEGMENT
        key = (
            (entry.stream, small, entry.pool_id)
            if entry.pool_id is not None
            else owners.get((entry.stream, small))
        )
        # Once nothing is mapped any more, the addresses are given up.
        if key is None or mapped.get(key, 0) <= 0:
            continue
        if entry.action is Action.SEGMENT_MAP:
            mapped[key] += entry.size
            if bases[key] - UNKNOWN_SPACE // 2 < entry.address:
                bases[key] = min(bases[key], entry.address)
        else:
            mapped[key] -= entry.size
    return bases


def _load_space(
    heap: Heap, stretches: list[SnapshotSegment], base: int, live: dict[int, Block]
) -> None:
    """Lay out one expandable segment: mapped stretches, holes, and room to grow."""
    pool = _pool(heap, stretches[0])
    page = SMALL_SEGMENT if pool.small else heap.config.large_segment_size
    reservation = Reservation(base, UNKNOWN_SPACE // page * page, page)
    chain: list[Block] = []
    loaded: list[tuple[SnapshotSegment, list[Block]]] = []
    at = base

    def hole(end: int) -> None:
        if end > at:
            unmapped = Block(at, end - at, stretches[0].stream, pool)
            unmapped.mapped = False
            chain.append(unmapped)

    for segment in sorted(stretches, key=lambda s: s.address):
        hole(segment.address)
        blocks = _blocks(segment, pool)
        chain.extend(blocks)
        loaded.append((segment, blocks))
        at = segment.address + segment.size
    hole(base + reservation.size)
    for block in chain:
        block.reservation = reservation
        if not block.mapped:
            pool.add_unmapped(block)
    _link(chain)
    _give_ages(heap, chain)
    for segment, blocks in loaded:
        heap.count_reserved(pool, segment.size)
        _enter(heap, blocks, segment, live)
