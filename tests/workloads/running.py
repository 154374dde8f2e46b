"""Run small scripts as the command does, each in a fork of the test's process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

from ebbtide.trace.file import load_trace
from ebbtide.trace.model import Category, Event, Trace
from ebbtide.workloads.child import script_trace, warm
from ebbtide.workloads.forking import Forks
from ebbtide.workloads.request import Request
from ebbtide.workloads.stopping import STOP_SIGNAL
from ebbtide.workloads.tracing import Job

HEAD = """
import torch
from torch import nn
"""
MODEL = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
def step(batch=8):
    model(torch.randn(batch, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(
    folder: Path,
    *pieces: str,
    args: tuple[str, ...] = (),
    gpu: str = "l4",
    enforce: bool = False,
    seconds: float = 120,
    **job: Any,
) -> Trace:
    """The trace of a script of these pieces of text, which follow `HEAD`."""
    script = folder / "train.py"
    script.write_text("\n".join(map(dedent, (HEAD, *pieces))))
    warm(gpu)
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    forks = Forks(notes, STOP_SIGNAL)
    path = notes / "made.trace"
    path.unlink(missing_ok=True)
    request = Request(kind="script", target=str(script), args=args)
    here = Job(gpu=gpu, **job)
    forks.run(lambda: script_trace(request, here, path, forks, enforce), seconds=seconds)
    return load_trace(path)


def steps_of(trace: Trace) -> list[str]:
    """Names of the phases of `trace` in which anything ran, in order, repeats left out."""
    found = [trace.phases[phase] for phase in trace.ops.phase.tolist()]
    named = [f"{phase.name} {phase.step}" for phase in found]
    return [name for name, before in zip(named, ["", *named], strict=False) if name != before]


def alive(trace: Trace) -> Iterator[tuple[Category, int]]:
    """Category and bytes of what is alive at the end."""
    held = set()
    for kind, arg in zip(trace.event_kind.tolist(), trace.event_arg.tolist(), strict=True):
        if kind == Event.ALLOC:
            held.add(arg)
        elif kind == Event.FREE:
            held.discard(arg)
    for row in sorted(held):
        yield Category(trace.allocs.category[row]), int(trace.allocs.likely_bytes[row])


def on_path(folder: Path) -> dict[str, str]:
    """An environment in which a child process finds what lies in `folder`."""
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
