"""What a memory snapshot holds, typed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ebbtide.vgpu.allocator import AllocatorConfig, PoolId


class Action(IntEnum):
    """What happened in the allocator: torch's `TraceEntry::Action`."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


class BlockState(IntEnum):
    """Whether a block is in use, waits for other streams, or is cached."""

    ALLOCATED = 0
    PENDING = 1
    INACTIVE = 2


class SnapshotBlock(NamedTuple):
    """A block of a segment. Sizes are bytes; `requested` is stale in a cached block."""

    address: int
    size: int
    requested: int
    state: BlockState


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotSegment:
    """A segment, or one mapped stretch of an expandable segment.

    Attributes:
        address: first address.
        size: bytes.
        stream: the stream that its blocks belong to.
        small: whether it belongs to the pool for requests of at most 1 MiB.
        pool_id: which private pool, ``(0, 0)`` for none.
        expandable: whether it is part of an expandable segment.
        blocks: the blocks, in the order of their addresses; they fill the segment.
    """

    device: int
    address: int
    size: int
    stream: int
    small: bool
    pool_id: PoolId
    expandable: bool
    blocks: tuple[SnapshotBlock, ...]


class TraceEntry(NamedTuple):
    """One event of the record.

    `size` is bytes as requested for the `ALLOC` and `FREE_*` actions, whole segments
    or pages for the `SEGMENT_*` ones. `address` is the free memory of the device for
    `OOM`. `pool_id` is None where the version of torch did not write it.
    """

    action: Action
    address: int
    size: int
    stream: int
    pool_id: PoolId | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRecord:
    """What a snapshot says of one device: its segments and its events, oldest first."""

    device: int
    segments: tuple[SnapshotSegment, ...]
    events: tuple[TraceEntry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A memory snapshot.

    Attributes:
        devices: every device that has segments or events, by its index.
        config: the allocator's settings when the snapshot was taken.
    """

    devices: dict[int, DeviceRecord]
    config: AllocatorConfig
