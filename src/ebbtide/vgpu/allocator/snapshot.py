"""What the allocator holds, segment by segment, as `torch.cuda.memory_snapshot` shows it."""

from __future__ import annotations

from typing import Any

from ebbtide.vgpu.allocator.allocator import CachingAllocator
from ebbtide.vgpu.allocator.blocks import Block


def memory_snapshot(allocator: CachingAllocator) -> list[dict[str, Any]]:
    """The segments in the order of their addresses, each with its blocks.

    An expandable segment is reported as one segment for each mapped stretch.
    The keys are those of torch 2.13, but for stack frames, which are empty.
    """
    blocks: list[Block] = list(allocator.heap.active)
    for sides in allocator.heap.pools.values():
        for pool in sides:
            blocks.extend(pool.cached())
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    heads.sort(key=lambda block: block.address)
    return [_segment(head, allocator.device) for head in heads]


def _segment(head: Block, device: int) -> dict[str, Any]:
    parts = []
    at: Block | None = head
    while at is not None and at.mapped:
        parts.append(at)
        at = at.next
    return {
        "device": device,
        "address": head.address,
        "total_size": sum(block.size for block in parts),
        "allocated_size": sum(block.size for block in parts if block.allocated),
        "active_size": sum(block.size for block in parts if block.busy),
        "requested_size": sum(block.requested for block in parts if block.busy),
        "stream": head.stream,
        "segment_type": "small" if head.pool.small else "large",
        "segment_pool_id": head.pool.id,
        "is_expandable": head.reservation is not None,
        "frames": [],
        "blocks": [_block(block) for block in parts],
    }


def _block(block: Block) -> dict[str, Any]:
    if block.allocated:
        state = "active_allocated"
    else:
        state = "active_pending_free" if block.busy else "inactive"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": state,
        "frames": [],
    }
