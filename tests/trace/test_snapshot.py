from __future__ import annotations

import gzip
import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import SnapshotError
from ebbtide.trace.snapshot import (
    Action,
    BlockState,
    parse_snapshot,
    parse_snapshot_data,
    read_snapshot,
)
from ebbtide.units import MiB
from ebbtide.vgpu.allocator.sizes import UNLIMITED

DATA = Path(__file__).parents[1] / "data" / "snapshots"
BASE = 0x7F00_0000_0000


def block(address: int, size: int, state: str = "inactive", requested: int = 0) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [],
    }


def segment(address: int = BASE, *blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    parts = list(blocks) or [block(address, 2 * MiB)]
    return {
        "device": 0,
        "address": address,
        "total_size": sum(part["size"] for part in parts),
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": parts,
        **fields,
    }


def entry(action: str, size: int = 512, addr: int = BASE, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1}


@pytest.fixture
def data() -> dict[str, Any]:
    return {
        "segments": [
            segment(BASE, block(BASE, 512, "active_allocated", 100), block(BASE + 512, 1536)),
            segment(BASE + 4 * MiB, stream=7, segment_type="large", segment_pool_id=(0, 3)),
        ],
        "device_traces": [[entry("segment_alloc", 2048), entry("alloc", 100)], []],
        "allocator_settings": {"max_split_size": -1, "expandable_segments": False},
    }


def test_what_is_in_it(data: dict[str, Any]):
    snapshot = parse_snapshot_data(data)
    assert set(snapshot.devices) == {0}
    record = snapshot.devices[0]
    first, second = record.segments
    assert (first.address, first.size, first.small, first.pool_id) == (BASE, 2048, True, (0, 0))
    assert first.blocks[0] == (BASE, 512, 100, BlockState.ALLOCATED)
    assert first.blocks[1].state is BlockState.INACTIVE
    assert (second.stream, second.small, second.pool_id) == (7, False, (0, 3))
    assert [e.action for e in record.events] == [Action.SEGMENT_ALLOC, Action.ALLOC]
    assert record.events[1] == (Action.ALLOC, BASE, 100, 0, None)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_files_of_every_kind(tmp_path: Path, data: dict[str, Any], protocol: int, packed: bool):
    raw = pickle.dumps(data, protocol=protocol)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert read_snapshot(path) == parse_snapshot_data(data)
    assert read_snapshot(str(path)) == parse_snapshot_data(data)


def test_a_gzip_file_of_several_members(data: dict[str, Any]):
    raw = pickle.dumps(data)
    packed = gzip.compress(raw[:100]) + gzip.compress(raw[100:])
    assert parse_snapshot(packed) == parse_snapshot_data(data)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gz")), ids=lambda p: p.name.split(".")[0])
def test_real_ones(path: Path):
    snapshot = read_snapshot(path)
    # Python's own unpickler agrees on the same files, which hold nothing but plain data.
    plain = pickle.loads(gzip.decompress(path.read_bytes()))
    (record,) = snapshot.devices.values()
    assert len(record.segments) == len(plain["segments"])
    assert len(record.events) == len(plain["device_traces"][0])
    assert sum(s.size for s in record.segments) == sum(s["total_size"] for s in plain["segments"])
    in_use = sum(
        b.size for s in record.segments for b in s.blocks if b.state is not BlockState.INACTIVE
    )
    assert in_use == sum(s["active_size"] for s in plain["segments"])
    assert snapshot.config.max_split_size == UNLIMITED
    assert snapshot.config.roundup_power2_divisions == ()


def test_only_the_list_of_segments(data: dict[str, Any]):
    snapshot = parse_snapshot_data(data["segments"])
    assert snapshot.devices[0].events == ()
    assert len(snapshot.devices[0].segments) == 2


def test_several_devices(data: dict[str, Any]):
    data["segments"][1]["device"] = 2
    data["device_traces"] = [[], [entry("alloc")], []]
    snapshot = parse_snapshot_data(data)
    assert sorted(snapshot.devices) == [0, 1, 2]
    assert len(snapshot.devices[1].events) == 1
    assert snapshot.devices[1].segments == ()


def test_nothing_at_all():
    assert parse_snapshot_data({"segments": [], "device_traces": [[], []]}).devices == {}


def test_older_formats(data: dict[str, Any]):
    """Torch up to 2.1: no addresses of blocks, no requested sizes, no pools, other words."""
    for one in data["segments"]:
        del one["segment_pool_id"], one["is_expandable"]
        for part in one["blocks"]:
            del part["address"], part["requested_size"]
    data["segments"][0]["blocks"][0]["state"] = "active_awaiting_free"
    del data["allocator_settings"]
    first, second = parse_snapshot_data(data).devices[0].segments
    assert first.blocks[1].address == BASE + 512
    assert first.blocks[0].requested == 512
    assert first.blocks[0].state is BlockState.PENDING
    assert second.pool_id == (0, 0)


def test_newer_formats(data: dict[str, Any]):
    """Torch from 2.13 on: host memory, annotations, pools in the record; unknown keys."""
    data["host_segments"] = [{"address": 1, "size": 2}]
    data["host_traces"] = [[]]
    data["device_traces"][0].append({"action": "annotate", "addr": 1, "metadata": "x"})
    data["device_traces"][0].append(entry("alloc") | {"pool_id": (0, 3)})
    record = parse_snapshot_data(data).devices[0]
    assert len(record.events) == 3
    assert record.events[-1].pool_id == (0, 3)


def test_an_out_of_memory_event_has_no_address(data: dict[str, Any]):
    data["device_traces"][0] = [{"action": "oom", "device_free": 99, "size": 512, "stream": 0}]
    (event,) = parse_snapshot_data(data).devices[0].events
    assert event == (Action.OOM, 99, 512, 0, None)


def test_settings(data: dict[str, Any]):
    data["allocator_settings"] = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_non_split_rounding_mb:40,large_segment_size_mb:32",
        "max_split_size": 64 * MiB,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": True,
        "roundup_power2_divisions": {str(1 << i): 4 if i == 3 else 0 for i in range(16)},
    }
    config = parse_snapshot_data(data).config
    assert config.max_split_size == 64 * MiB
    assert config.max_non_split_rounding_size == 40 * MiB
    assert config.large_segment_size == 32 * MiB
    assert config.expandable_segments
    assert config.roundup_power2_divisions == (0, 0, 0, 4, *(0,) * 12)


def test_a_setting_that_is_not_known_is_passed_over(data: dict[str, Any]):
    data["allocator_settings"] = {
        "PYTORCH_CUDA_ALLOC_CONF": "something_new:1",
        "max_split_size": 32 * MiB,
    }
    assert parse_snapshot_data(data).config.max_split_size == 32 * MiB


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("segments"), "no memory snapshot"),
        (lambda d: d.pop("device_traces"), "no memory snapshot"),
        (lambda d: d.update(segments={}), "segments: expected a list, got a dict"),
        (lambda d: d.update(device_traces=[7]), "device_traces[0]: expected a list"),
        (lambda d: d["segments"].append(3), "segments[2]: expected a dict"),
        (lambda d: d["segments"][0].pop("address"), "segments[0]: 'address'"),
        (lambda d: d["segments"][0].update(address="x"), "'address' should be a whole number"),
        (lambda d: d["segments"][0].update(address=True), "'address' should be"),
        (lambda d: d["segments"][0].update(address=2**70), "'address' should be"),
        (lambda d: d["segments"][0].update(total_size=-5), "'total_size' should be a number"),
        (lambda d: d["segments"][0].update(total_size=4096), "2048 bytes together"),
        (lambda d: d["segments"][0].update(segment_type="huge"), "not small or large"),
        (lambda d: d["segments"][0].update(blocks=None), "expected a list"),
        (lambda d: d["segments"][0].update(stream=None), "'stream'"),
        (lambda d: d["segments"][0].update(segment_pool_id="a"), "pool id"),
        (lambda d: d["segments"][0].update(segment_pool_id=(1, "b")), "pool id"),
        (lambda d: d["segments"][0]["blocks"].append(None), "expected a dict"),
        (lambda d: d["segments"][0]["blocks"][0].update(state="lost"), "unknown 'state' 'lost'"),
        (lambda d: d["segments"][0]["blocks"][0].update(state=[]), "unknown 'state' a list"),
        (lambda d: d["segments"][0]["blocks"][0].update(size=0), "'size' is 0"),
        (lambda d: d["segments"][0]["blocks"][1].update(address=5), "'address' is 0x5"),
        (lambda d: d["segments"][1].update(address=BASE + 512), "'address' is"),
        (lambda d: d["device_traces"][0].append(1), "device_traces[0][2]: expected a dict"),
        (lambda d: d["device_traces"][0].append({"action": 5}), "'action' is 5"),
        (lambda d: d["device_traces"][0][1].pop("addr"), "'addr'"),
        (lambda d: d["device_traces"][0][1].update(size="1"), "'size'"),
        (lambda d: d["device_traces"][0][1].update(size=-1), "'size' is -1"),
        (lambda d: d["device_traces"][0][1].update(pool_id=3), "pool id"),
        (
            lambda d: d["allocator_settings"].update(roundup_power2_divisions={"1": "x"}),
            "roundup_power2_divisions",
        ),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], change: Any, words: str):
    change(data)
    with pytest.raises(SnapshotError) as caught:
        parse_snapshot_data(data)
    assert words in str(caught.value)


def test_overlapping_segments_are_refused(data: dict[str, Any]):
    other = deepcopy(data["segments"][0])
    data["segments"].append(other)
    with pytest.raises(SnapshotError, match="overlap"):
        parse_snapshot_data(data)


def test_messages_stay_short(data: dict[str, Any]):
    data["segments"][0]["segment_type"] = "x" * 10_000
    with pytest.raises(SnapshotError) as caught:
        parse_snapshot_data(data)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [7, None, "text", (), b"\x00"])
def test_a_pickle_of_something_else(value: object):
    with pytest.raises(SnapshotError, match="no memory snapshot"):
        parse_snapshot(pickle.dumps(value))


def test_files_that_cannot_be_read(tmp_path: Path, data: dict[str, Any]):
    missing = tmp_path / "none.pickle"
    with pytest.raises(SnapshotError, match=r"cannot read .*none\.pickle: No such file"):
        read_snapshot(missing)
    with pytest.raises(SnapshotError, match="cannot read"):
        read_snapshot(tmp_path)
    empty = tmp_path / "empty.pickle"
    empty.touch()
    with pytest.raises(SnapshotError, match=r"empty\.pickle cannot be read .* file is empty"):
        read_snapshot(empty)
    packed = gzip.compress(pickle.dumps(data))
    for name, raw, words in (
        ("cut", packed[:-20], "cut off"),
        ("damaged", packed[:30] + b"\x00" * 30 + packed[60:], "damaged"),
        ("text", b"just text\n", "not a pickle"),
    ):
        path = tmp_path / f"{name}.pickle.gz"
        path.write_bytes(raw)
        with pytest.raises(SnapshotError, match=words):
            read_snapshot(path)


def test_a_small_file_that_unpacks_to_a_large_one(tmp_path: Path):
    path = tmp_path / "bomb.pickle.gz"
    path.write_bytes(gzip.compress(b"\x80\x04" + b"]" * (8 * MiB)))
    with pytest.raises(SnapshotError, match=r"unpacks to more than 1\.0 MiB"):
        read_snapshot(path, max_bytes=MiB)


def test_a_large_file_is_refused_before_it_is_parsed():
    with pytest.raises(SnapshotError, match="more than 1000 B"):
        parse_snapshot(b"\x80\x04" + b"]" * 2000, max_bytes=1000)
