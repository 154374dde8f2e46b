"""Find the processes that a workload has started, also those that left its process group.

Loggers and launchers start services in sessions of their own. What they inherit is the
environment, so a mark in it tells whose they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

MARK = "EBBTIDE_WORKLOAD"
# A process may start another while the list is read.
_ROUNDS = 5
_PROC = Path("/proc")


def end_marked(value: str) -> None:
    """Kill every process of this user that was started with `MARK` set to `value`.

    Does nothing where there is no ``/proc``, as on macOS.
    """
    for _ in range(_ROUNDS):
        found = list(_marked(value))
        if not found:
            return
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


def _marked(value: str) -> Iterator[int]:
    wanted = os.fsencode(f"{MARK}={value}")
    for entry in _PROC.glob("[0-9]*"):
        # Gone meanwhile, or of another user. A process that is dead has no environment left.
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
