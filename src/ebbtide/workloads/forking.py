"""Run work in a fork of this process: what it does to the process is gone with it."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ebbtide.errors import EbbtideError, ScriptError
from ebbtide.workloads.failures import pack, unpack

# How long a script that was told to stop may take to write its trace.
GRACE_S = 60.0
_POLL_S = 0.02
_SHOWN_BYTES = 100_000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FAILED, _INTERRUPTED = 1, 130


def die_with_parent() -> None:
    """Let the kernel end this process when the one that started it is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Forks:
    """Starts forks one after the other.

    Args:
        folder: for notes between the processes.
        stop_signal: tells a fork that its time is up; blocked until the fork is ready for it.
        close: file descriptors that are not for the fork.
    """

    def __init__(self, folder: Path, stop_signal: int, close: tuple[int, ...] = ()) -> None:
        self._failure = folder / "failure.json"
        self._log = folder / "output.log"
        self._started = folder / "started"
        self._stop_signal = stop_signal
        self._close = close

    def started(self) -> None:
        """Call in the fork when it is ready for the signal: its time runs from here."""
        self._started.touch()

    def run(self, work: Callable[[], object], *, seconds: float, quiet: bool = False) -> None:
        """Run `work` in a fork and wait for it.

        Args:
            work: what to do.
            seconds: this long after its start it is told to stop, and killed if it does not.
            quiet: keep what it prints back, unless it fails.

        Raises:
            EbbtideError: the one that `work` raised.
            ScriptError: the process ended in another way.
        """
        for note in (self._failure, self._log, self._started):
            note.unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, {self._stop_signal})
        child = os.fork()
        if child == 0:
            self._be(work, quiet)
        status = self._wait(child, seconds)
        if status == 0:
            return
        if quiet:
            self._show()
        raise self._error(status)

    def _be(self, work: Callable[[], object], quiet: bool) -> NoReturn:
        code = _FAILED
        try:
            die_with_parent()
            for descriptor in self._close:
                os.close(descriptor)
            if quiet:
                log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
            faulthandler.enable(file=2)
            work()
            code = 0
        except EbbtideError as error:
            self._failure.write_text(json.dumps(pack(error)))
        except KeyboardInterrupt:
            code = _INTERRUPTED
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            leave(code)

    def _wait(self, child: int, seconds: float) -> int:
        """The wait status of `child`, which is told to stop `seconds` after its start."""
        deadline = math.inf
        told = False
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            if deadline == math.inf and self._started.exists():
                deadline = time.monotonic() + seconds
            if time.monotonic() > deadline:
                if told:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    raise ScriptError(
                        f"The script was told to stop after {seconds:.0f} s and did not within "
                        f"{GRACE_S:.0f} s. Give it less to do before its first steps."
                    )
                os.kill(child, self._stop_signal)
                told, deadline = True, deadline + GRACE_S
            time.sleep(_POLL_S)

    def _error(self, status: int) -> EbbtideError:
        try:
            failure = json.loads(self._failure.read_text())
        except (OSError, ValueError):
            return ScriptError(_ending(status))
        return unpack(failure)

    def _show(self) -> None:
        try:
            text = self._log.read_bytes()
        except OSError:
            return
        sys.stderr.write(text[-_SHOWN_BYTES:].decode(errors="replace"))
        sys.stderr.flush()


def leave(code: int) -> NoReturn:
    """End this process at once: taking torch down in good order takes seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ending(status: int) -> str:
    if not os.WIFSIGNALED(status):
        code = os.waitstatus_to_exitcode(status)
        return f"The script ended its process with code {code}; what it printed is above."
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return (
            f"The process that ran the script was killed ({name}). This machine may be out of "
            "memory: what the script holds on the CPU is real."
        )
    return (
        f"The process that ran the script crashed ({name}). Its last lines of Python are above; "
        "an extension module that uses CUDA by itself cannot run on the virtual GPU."
    )
