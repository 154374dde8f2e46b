"""Read memory snapshots of PyTorch.

A snapshot is what `torch.cuda.memory._dump_snapshot` writes: the segments that the
caching allocator held when it was taken, each with its blocks, and for every device
the record of what happened before, as far as it was recorded and kept.

Source of the format: `torch/csrc/cuda/Module.cpp` and `memory_snapshot.cpp` of
pytorch/pytorch, 2.1 to 2.14.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from ebbtide.errors import SnapshotError
from ebbtide.trace.snapshot_parse import parse_snapshot_data
from ebbtide.trace.snapshot_types import (
    Action,
    BlockState,
    DeviceRecord,
    Snapshot,
    SnapshotBlock,
    SnapshotSegment,
    TraceEntry,
)
from ebbtide.trace.unpickle import loads
from ebbtide.units import GiB, format_bytes

__all__ = [
    "Action",
    "BlockState",
    "DeviceRecord",
    "Snapshot",
    "SnapshotBlock",
    "SnapshotSegment",
    "TraceEntry",
    "parse_snapshot",
    "parse_snapshot_data",
    "read_snapshot",
]

MAX_BYTES = 2 * GiB
"""The largest snapshot that is read, unpacked: a small gzip file can unpack to anything."""

_GZIP = b"\x1f\x8b"


def read_snapshot(path: str | Path, max_bytes: int = MAX_BYTES) -> Snapshot:
    """The snapshot in the file `path`, which may be packed with gzip.

    Args:
        path: the file.
        max_bytes: how large it may be, unpacked.

    Raises:
        SnapshotError: the file cannot be read or is no snapshot; the message names it.
    """
    try:
        raw = Path(path).read_bytes()
        return parse_snapshot(raw, max_bytes)
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror or error}") from None
    except SnapshotError as error:
        raise SnapshotError(f"{path} cannot be read as a memory snapshot: {error}") from None


def parse_snapshot(raw: bytes, max_bytes: int = MAX_BYTES) -> Snapshot:
    """The snapshot in the bytes `raw`: a pickle, perhaps packed with gzip.

    Raises:
        SnapshotError: `raw` is no snapshot.
    """
    if not raw:
        raise SnapshotError("the file is empty")
    if raw.startswith(_GZIP):
        raw = _unpack(raw, max_bytes)
    if len(raw) > max_bytes:
        raise SnapshotError(f"it has more than {format_bytes(max_bytes)}")
    return parse_snapshot_data(loads(raw))


def _unpack(raw: bytes, max_bytes: int) -> bytes:
    pieces = []
    room = max_bytes + 1
    while raw.startswith(_GZIP):  # a gzip file may have several members
        unpacker = zlib.decompressobj(wbits=31)
        try:
            piece = unpacker.decompress(raw, room)
        except zlib.error as error:
            raise SnapshotError(f"the gzip file is damaged: {error}") from None
        pieces.append(piece)
        room -= len(piece)
        if room <= 0:
            raise SnapshotError(f"it unpacks to more than {format_bytes(max_bytes)}")
        if not unpacker.eof:
            raise SnapshotError("the gzip file is cut off")
        raw = unpacker.unused_data
    return b"".join(pieces)
