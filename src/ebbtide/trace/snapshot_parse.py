"""From the plain data of a snapshot to its typed form, with every field checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ebbtide.errors import SnapshotError, UsageError
from ebbtide.trace.snapshot_types import (
    Action,
    BlockState,
    DeviceRecord,
    Snapshot,
    SnapshotBlock,
    SnapshotSegment,
    TraceEntry,
)
from ebbtide.vgpu.allocator import DEFAULT_POOL, AllocatorConfig, PoolId
from ebbtide.vgpu.allocator.sizes import POWER2_INTERVALS, UNLIMITED

_ACTIONS = {action.name.lower(): action for action in Action}
_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,  # as torch up to 2.1 writes it
    "inactive": BlockState.INACTIVE,
}
_CONFIG_TEXTS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_LIMIT = 1 << 62


def parse_snapshot_data(data: Any) -> Snapshot:
    """The snapshot that plain `data` describes.

    Args:
        data: what `torch.cuda.memory._snapshot()` returns, or only its list of segments.

    Raises:
        SnapshotError: a field is missing, of the wrong kind, or contradicts another.
    """
    if isinstance(data, list):
        data = {"segments": data, "device_traces": []}
    if not isinstance(data, dict) or not {"segments", "device_traces"} <= data.keys():
        raise SnapshotError(
            "no memory snapshot: expected a dict with 'segments' and 'device_traces', "
            f"as torch.cuda.memory._dump_snapshot writes, got a {type(data).__name__}"
        )
    segments = [_segment(item, i) for i, item in enumerate(_list(data["segments"], "segments"))]
    traces = _list(data["device_traces"], "device_traces")
    events = {
        device: tuple(_entries(_list(trace, f"device_traces[{device}]"), device))
        for device, trace in enumerate(traces)
    }
    names = {segment.device for segment in segments} | {d for d, e in events.items() if e}
    devices = {}
    for device in sorted(names):
        own = sorted((s for s in segments if s.device == device), key=lambda s: s.address)
        _check_overlap(own)
        devices[device] = DeviceRecord(
            device=device, segments=tuple(own), events=events.get(device, ())
        )
    return Snapshot(devices=devices, config=_config(data.get("allocator_settings")))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise SnapshotError(f"{name}: expected a list, got a {type(value).__name__}")
    return value


def _number(item: Mapping[Any, Any], key: str, where: str) -> int:
    value = item.get(key)
    if type(value) is not int or not -_LIMIT < value < 4 * _LIMIT:
        raise SnapshotError(f"{where}: {key!r} should be a whole number, it is {_shown(value)}")
    return value


def _size(item: Mapping[Any, Any], key: str, where: str) -> int:
    value = _number(item, key, where)
    if value < 0 or value >= _LIMIT:
        raise SnapshotError(f"{where}: {key!r} should be a number of bytes, it is {value}")
    return value


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"


def _mapping(item: Any, where: str) -> dict[Any, Any]:
    if not isinstance(item, dict):
        raise SnapshotError(f"{where}: expected a dict, got a {type(item).__name__}")
    return item


def _pool_id(value: Any, where: str) -> PoolId:
    if value is None:
        return DEFAULT_POOL
    if (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(type(part) is int for part in value)
    ):
        return (value[0], value[1])
    raise SnapshotError(f"{where}: a pool id should be two whole numbers, it is {_shown(value)}")


def _segment(item: Any, index: int) -> SnapshotSegment:
    where = f"segments[{index}]"
    item = _mapping(item, where)
    address = _number(item, "address", where)
    size = _size(item, "total_size", where)
    kind = item.get("segment_type")
    if kind not in ("small", "large"):
        raise SnapshotError(f"{where}: 'segment_type' is {_shown(kind)}, not small or large")
    blocks = []
    at = address
    for number, entry in enumerate(_list(item.get("blocks"), f"{where}['blocks']")):
        block = _block(entry, at, f"{where}['blocks'][{number}]")
        blocks.append(block)
        at += block.size
    if at != address + size:
        raise SnapshotError(
            f"{where}: its blocks have {at - address} bytes together, but it has {size}"
        )
    return SnapshotSegment(
        device=_number(item, "device", where) if "device" in item else 0,
        address=address,
        size=size,
        stream=_number(item, "stream", where),
        small=kind == "small",
        pool_id=_pool_id(item.get("segment_pool_id"), where),
        expandable=bool(item.get("is_expandable", False)),
        blocks=tuple(blocks),
    )


def _block(item: Any, address: int, where: str) -> SnapshotBlock:
    item = _mapping(item, where)
    size = _size(item, "size", where)
    state = item.get("state")
    if not isinstance(state, str) or state not in _STATES:
        raise SnapshotError(f"{where}: unknown 'state' {_shown(state)}")
    if size == 0:
        raise SnapshotError(f"{where}: 'size' is 0")
    # torch up to 2.1 does not write the address of a block.
    if "address" in item and _number(item, "address", where) != address:
        raise SnapshotError(f"{where}: 'address' is {item['address']:#x}, expected {address:#x}")
    requested = _size(item, "requested_size", where) if "requested_size" in item else size
    return SnapshotBlock(address, size, requested, _STATES[state])


def _check_overlap(segments: list[SnapshotSegment]) -> None:
    for before, after in pairwise(segments):
        if before.address + before.size > after.address:
            raise SnapshotError(
                f"the segments at {before.address:#x} and {after.address:#x} overlap"
            )


def _entries(trace: list[Any], device: int) -> list[TraceEntry]:
    entries = []
    for index, item in enumerate(trace):
        if not isinstance(item, dict):
            _mapping(item, f"device_traces[{device}][{index}]")
        action = item.get("action")
        known = _ACTIONS.get(action) if isinstance(action, str) else None
        if known is None:
            # Newer versions may note more (user annotations, workspaces): no effect on blocks.
            if isinstance(action, str):
                continue
            raise SnapshotError(f"device_traces[{device}][{index}]: 'action' is {_shown(action)}")
        place = "device_free" if known is Action.OOM and "device_free" in item else "addr"
        address, size, stream = item.get(place), item.get("size"), item.get("stream")
        if type(address) is not int or type(size) is not int or type(stream) is not int:
            where = f"device_traces[{device}][{index}]"
            for key in (place, "size", "stream"):
                _number(item, key, where)
        if size < 0 or size >= _LIMIT:
            raise SnapshotError(f"device_traces[{device}][{index}]: 'size' is {_shown(size)}")
        entries.append(TraceEntry(known, address, size, stream, _entry_pool(item, device, index)))
    return entries


def _entry_pool(item: dict[Any, Any], device: int, index: int) -> PoolId | None:
    for key in ("segment_pool_id", "pool_id", "mempool_id"):
        if key in item:
            return _pool_id(item[key], f"device_traces[{device}][{index}]")
    return None


def _config(settings: Any) -> AllocatorConfig:
    if not isinstance(settings, dict):
        return AllocatorConfig()
    config = AllocatorConfig()
    for name in _CONFIG_TEXTS:
        text = settings.get(name)
        if isinstance(text, str) and text:
            try:
                config = AllocatorConfig.parse(text)
            except UsageError:
                # A setting of another version: the figures below say what was in force.
                continue
            break
    limit = settings.get("max_split_size")
    if type(limit) is int:
        config = replace(config, max_split_size=limit if limit > 0 else UNLIMITED)
    expandable = settings.get("expandable_segments")
    if isinstance(expandable, bool):
        config = replace(config, expandable_segments=expandable)
    return replace(config, roundup_power2_divisions=_divisions(settings))


def _divisions(settings: dict[Any, Any]) -> tuple[int, ...]:
    table = settings.get("roundup_power2_divisions")
    if not isinstance(table, dict):
        return ()
    steps = [table.get(str(1 << i), 0) for i in range(POWER2_INTERVALS)]
    if not all(type(step) is int and 0 <= step < 1 << 32 for step in steps):
        raise SnapshotError("allocator_settings: 'roundup_power2_divisions' should be numbers")
    return tuple(steps) if any(step > 1 for step in steps) else ()
