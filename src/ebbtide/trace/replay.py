"""A snapshot file through the allocator model: the call behind `ebbtide.replay`."""

from __future__ import annotations

from pathlib import Path

from ebbtide.trace.snapshot import read_snapshot
from ebbtide.trace.snapshot_replay import DeviceReplay, replay_record


def replay(path: str | Path) -> tuple[DeviceReplay, ...]:
    """Replay a memory snapshot of PyTorch, and compare the model with the record.

    Args:
        path: a file of `torch.cuda.memory._dump_snapshot`, plain or packed with gzip.
            Nothing in it is executed.

    Returns:
        One comparison for each GPU of the snapshot, by its index; empty where the
        snapshot has no segments and no events.

    Raises:
        SnapshotError: the file cannot be read or replayed.
    """
    snapshot = read_snapshot(Path(path))
    return tuple(
        replay_record(snapshot.devices[index], snapshot.config)
        for index in sorted(snapshot.devices)
    )
