from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import ebbtide

KiB, MiB = 1 << 10, 1 << 20
BASE = 0x7F00_0000_0000


def event(action: str, size: int, at: int = BASE) -> dict[str, Any]:
    return {"action": action, "addr": at, "size": size, "stream": 0, "frames": []}


def snapshot(path: Path, *traces: list[dict[str, Any]]) -> Path:
    """A snapshot that began on an empty allocator and ended with nothing held."""
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": list(traces)}))
    return path


def one_small_allocation(at: int = BASE) -> list[dict[str, Any]]:
    """What CUDA does for 1,000 bytes: a 2 MiB segment, and 1 KiB at its start."""
    return [
        event("segment_alloc", 2 * MiB),
        event("alloc", KiB, at),
        event("free_requested", KiB, at),
        event("free_completed", KiB, at),
        event("segment_free", 2 * MiB),
    ]


def test_a_file_is_replayed_by_its_path(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "a.pickle", one_small_allocation())
    (found,) = ebbtide.replay(str(path))
    assert (found.allocations, found.same_address) == (1, 1)
    assert (found.segment_allocations, found.same_segment_allocations) == (1, 1)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (KiB, 2 * MiB)
    assert found.same


def test_an_address_that_the_allocator_would_not_choose_is_no_match(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "a.pickle", one_small_allocation(BASE + MiB))
    (found,) = ebbtide.replay(path)
    assert not found.same


def test_devices_come_in_their_order(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "a.pickle", one_small_allocation(), one_small_allocation())
    assert [found.device for found in ebbtide.replay(path)] == [0, 1]


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"not a pickle"])
def test_what_is_no_snapshot_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.pickle"
    path.write_bytes(content)
    with pytest.raises(ebbtide.SnapshotError):
        ebbtide.replay(path)
