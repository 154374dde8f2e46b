"""A graph on its way from one process to another, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ebbtide.plan.graph import Call, Source, StepGraph, Storage


def save_graph(graph: StepGraph, path: Path) -> None:
    """Write `graph`."""
    data = {
        "base_bytes": graph.base_bytes,
        "seconds": graph.seconds,
        "storages": [[each.nbytes, each.place, each.calls] for each in graph.storages],
        "calls": [_call(each) for each in graph.calls],
        "events": graph.events,
    }
    path.write_text(json.dumps(data), encoding="utf-8")


def load_graph(path: Path) -> StepGraph:
    """What `save_graph` wrote."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return StepGraph(
        base_bytes=data["base_bytes"],
        seconds=data["seconds"],
        storages=tuple(
            Storage(nbytes, tuple(place) if place is not None else None, tuple(calls))
            for nbytes, place, calls in data["storages"]
        ),
        calls=tuple(
            Call(
                name=name,
                seconds=seconds,
                flops=flops,
                sources=tuple(Source(storage, version) for storage, version in sources),
                makes=tuple(makes),
                writes=tuple(writes),
                scratch_bytes=scratch,
                repeatable=repeatable,
                module=module,
            )
            for name, seconds, flops, sources, makes, writes, scratch, repeatable, module in data[
                "calls"
            ]
        ),
        events=tuple((kind, arg) for kind, arg in data["events"]),
    )


def _call(call: Call) -> list[Any]:
    return [
        call.name,
        call.seconds,
        call.flops,
        [[each.storage, each.version] for each in call.sources],
        call.makes,
        call.writes,
        call.scratch_bytes,
        call.repeatable,
        call.module,
    ]
