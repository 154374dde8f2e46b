"""Start the process that runs a workload, and collect its traces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ebbtide import errors
from ebbtide.errors import ScriptError, VirtualGpuError
from ebbtide.trace.file import load_trace
from ebbtide.trace.model import Trace
from ebbtide.workloads.request import Request

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """What a request gave.

    Attributes:
        traces: by GPU, then in the order in which they were made: first the one asked
            for, then the one for the curve.
        seconds: what each took.
        no_curve: why there is no second trace, by GPU.
    """

    traces: dict[str, list[Trace]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    no_curve: dict[str, str] = field(default_factory=dict)

    def joined(self, other: Traced) -> Traced:
        """Both together, of different GPUs."""
        return Traced(
            traces={**self.traces, **other.traces},
            seconds={**self.seconds, **other.seconds},
            no_curve={**self.no_curve, **other.no_curve},
        )


def run_request(request: Request, progress: Progress | None = None) -> Traced:
    """Run `request` in a process of its own.

    Args:
        request: what to run; its `folder` is replaced by a temporary one if empty.
        progress: called with each message of the process.

    Raises:
        EbbtideError: what the process reported, as the same class.
        VirtualGpuError: the process died without a word.
    """
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as folder:
        request = replace(request, folder=folder)
        path = Path(folder) / "request.json"
        path.write_text(request.to_text())
        return _collect(path, progress or (lambda _message: None))


def _collect(path: Path, progress: Progress) -> Traced:
    command = [sys.executable, "-m", "ebbtide.workloads.child", str(path)]
    traced = Traced()
    failure: dict[str, Any] | None = None
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment())
    assert process.stdout is not None
    try:
        for line in process.stdout:
            message = json.loads(line)
            progress(message)
            if message["event"] == "trace":
                gpu = message["gpu"]
                traced.traces.setdefault(gpu, []).append(load_trace(message["path"]))
                traced.seconds.setdefault(gpu, []).append(message["seconds"])
            elif message["event"] == "no-curve":
                traced.no_curve[message["gpu"]] = message["text"]
            elif message["event"] == "error":
                failure = message
    except BaseException:
        process.send_signal(signal.SIGTERM)
        raise
    finally:
        code = process.wait()
    if failure is not None:
        raise getattr(errors, failure["kind"], ScriptError)(failure["text"])
    if code != 0:
        raise VirtualGpuError(
            f"The process that ran the workload ended with code {code} and gave no reason. "
            "Run `python -m ebbtide.vgpu.selftest` to see whether the virtual GPU works with "
            "this torch; if it does, please report this with the command you ran."
        )
    return traced


def _environment() -> dict[str, str]:
    # Ebbtide itself may have been found through sys.path alone.
    root = str(Path(errors.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (root, inherited) if p)}
