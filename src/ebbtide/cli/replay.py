"""``ebbtide replay``: a memory snapshot through the allocator model, compared with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ebbtide.cli.streams import writing
from ebbtide.errors import UsageError
from ebbtide.trace.snapshot import Snapshot, read_snapshot
from ebbtide.trace.snapshot_replay import DeviceReplay, replay_record
from ebbtide.units import format_bytes


def replay(
    snapshot: Annotated[
        Path,
        typer.Argument(
            help="A file of torch.cuda.memory._dump_snapshot: .pickle, or packed with gzip.",
            metavar="SNAPSHOT",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[
        int | None,
        typer.Option(help="Index of one GPU; by default all that the snapshot has."),
    ] = None,
) -> None:
    """Replay a memory snapshot of PyTorch through the allocator model.

    Every allocation, free and segment of the record is done again from where the
    record begins, and the addresses are compared. Nothing in the file is executed.

    Exit code 0 where everything is the same, 1 where it is not, 2 for a file that
    cannot be read or replayed.
    """
    talk = Console(stderr=True)
    with talk.status(f"Reading {snapshot.name}"):
        read = read_snapshot(snapshot)
    replays = []
    for number in _devices(read, device):
        with talk.status(f"Replaying GPU {number}"):
            replays.append(replay_record(read.devices[number], read.config))
    with writing():
        if as_json:
            print(json.dumps(_json(replays), indent=2))
        else:
            _print(replays, Console())
    if not all(one.same for one in replays):
        raise typer.Exit(1)


def _devices(read: Snapshot, wanted: int | None) -> list[int]:
    if not read.devices:
        raise UsageError("The snapshot holds no segments and no events: nothing to replay.")
    if wanted is None:
        return sorted(read.devices)
    if wanted not in read.devices:
        there = ", ".join(map(str, sorted(read.devices)))
        raise UsageError(f"The snapshot has no GPU {wanted}. It has: {there}.")
    return [wanted]


def _json(replays: Sequence[DeviceReplay]) -> dict[str, Any]:
    """Counts of all devices together, peaks of the one where they are highest."""
    summed = (
        "allocations",
        "same_address",
        "segment_allocations",
        "same_segment_allocations",
        "segment_frees",
        "same_segment_frees",
        "events",
        "out_of_memory",
    )
    entry: dict[str, Any] = {
        "same": all(one.same for one in replays),
        **{name: sum(getattr(one, name) for one in replays) for name in summed},
        "peak_allocated_bytes": max(one.peak_allocated_bytes for one in replays),
        "peak_reserved_bytes": max(one.peak_reserved_bytes for one in replays),
        "devices": [
            asdict(one) | {"same": one.same, "tie_break": one.tie_break.value} for one in replays
        ],
    }
    return entry


def _print(replays: Sequence[DeviceReplay], console: Console) -> None:
    console.print(_verdict(replays))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("")
    for one in replays:
        table.add_column(f"GPU {one.device}", justify="right")
    rows: tuple[tuple[str, list[str]], ...] = (
        ("events recorded", [f"{one.events:,}" for one in replays]),
        ("at the same address", [_share(one.same_address, one.allocations) for one in replays]),
        (
            "same memory taken from the driver",
            [_share(one.same_segment_allocations, one.segment_allocations) for one in replays],
        ),
        (
            "same memory returned to it",
            [_share(one.same_segment_frees, one.segment_frees) for one in replays],
        ),
        ("requests out of memory", [f"{one.out_of_memory:,}" for one in replays]),
        ("allocated: at the start", [format_bytes(one.start_allocated_bytes) for one in replays]),
        ("  at its peak", [format_bytes(one.peak_allocated_bytes) for one in replays]),
        ("  at the end", [format_bytes(one.end_allocated_bytes) for one in replays]),
        ("reserved: at the start", [format_bytes(one.start_reserved_bytes) for one in replays]),
        ("  at its peak", [format_bytes(one.peak_reserved_bytes) for one in replays]),
        ("  at the end", [format_bytes(one.end_reserved_bytes) for one in replays]),
    )
    if any(one.ties_learned or one.sizes_learned for one in replays):
        learned = [f"{one.ties_learned + one.sizes_learned:,}" for one in replays]
        rows += (("facts about the start read off the record", learned),)
    for name, cells in rows:
        table.add_row(name, *cells)
    console.print(table)
    for one in replays:
        if one.first_difference is not None:
            console.print()
            console.print(
                Text(f"GPU {one.device}: first difference at {one.first_difference}."),
                soft_wrap=True,
            )


def _verdict(replays: Sequence[DeviceReplay]) -> Text:
    events = sum(one.events for one in replays)
    if events == 0:
        return Text(
            "Nothing to replay: the snapshot holds segments but no events. Record them "
            "with torch.cuda.memory._record_memory_history() before the part of interest.",
            style="bold yellow",
        )
    same = sum(one.same_address for one in replays)
    allocations = sum(one.allocations for one in replays)
    if all(one.same for one in replays):
        return Text(
            f"The same: all {allocations:,} allocations lie where they did on the GPU, "
            f"and all segments are the same.",
            style="bold green",
        )
    return Text(
        f"Not the same: {same:,} of {allocations:,} allocations lie where they did on the GPU.",
        style="bold red",
    )


def _share(same: int, total: int) -> str:
    if total == 0:
        return "none recorded"
    return f"{same:,} of {total:,}"
