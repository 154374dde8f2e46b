"""When a script has shown enough.

After the steps that are needed, data loaders end early, so that the script goes
on by itself to evaluation and checkpoint; a loop that steps on regardless is
ended from outside. Inference ends when repeating it needs no more memory.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch.utils.data.dataloader as dataloader

from ebbtide.trace.recorder import Recorder
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.tracing import STEPS

# Sent when the time is up. Programs have uses of their own for SIGALRM and SIGUSR1.
STOP_SIGNAL: int = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 5
# Beyond the steps needed: a loop that no data loader drives.
_MORE_STEPS = 2
# Forward passes without a new peak: end the data loaders, then the script.
_QUIET_FORWARDS, _QUIET_END = 8, 64
# Batches of an iterator that starts when all is known: enough for an evaluation to peak.
_LAST_BATCHES = 2
# A bare `except:` around a step swallows the end of the script so many times.
_PATIENCE = 3


class StopWorkload(BaseException):
    """Ends a script whose trace is complete. Not an `Exception`: scripts catch those."""


class Stopper:
    """Watches a recording and ends the script when nothing new is to come.

    Args:
        gpu: the virtual GPU.
        recorder: its recorder.
        steps: optimizer steps to record.
        swallowed: called where the script catches `StopWorkload` again and again.

    Attributes:
        enough: whether all steps that are needed have been seen.
        timed_out: whether `STOP_SIGNAL` came.
    """

    def __init__(
        self,
        gpu: VirtualGpu,
        recorder: Recorder,
        steps: int = STEPS,
        swallowed: Callable[[], object] = lambda: None,
    ) -> None:
        self._gpu = gpu
        self._recorder = recorder
        self._steps = steps
        self._swallowed = swallowed
        self._stops = 0
        self._quiet = 0
        self._peak = 0
        self.enough = False
        self.timed_out = False

    def after_step(self, steps: int) -> None:
        """Called with the number of optimizer steps so far."""
        self._quiet = 0
        if steps >= self._steps:
            self.enough = True
        if steps >= self._steps + _MORE_STEPS:
            self._stop()

    def after_forward(self, _forwards: int) -> None:
        """Called after each outermost module call."""
        peak = self._gpu.mode.storages.peak_bytes
        self._quiet = 0 if peak > self._peak else self._quiet + 1
        self._peak = peak
        if self._quiet >= _QUIET_FORWARDS and not self._recorder.trained:
            self.enough = True
        if self._quiet >= _QUIET_END:
            self._stop()

    def _stop(self) -> NoReturn:
        self._stops += 1
        if self._stops > _PATIENCE:
            self._swallowed()
        raise StopWorkload

    @contextmanager
    def watching(self) -> Iterator[None]:
        """End data loaders, and the script on `STOP_SIGNAL`, while it runs.

        A thread that is ended says nothing of it.
        """
        original = dataloader._BaseDataLoaderIter.__next__

        def limited(iterator: Any) -> Any:
            started_late = iterator.__dict__.setdefault("_ebbtide_late", self.enough)
            served = iterator.__dict__.get("_ebbtide_served", 0)
            if self.enough and served >= (_LAST_BATCHES if started_late else 0):
                raise StopIteration
            iterator.__dict__["_ebbtide_served"] = served + 1 if started_late else 0
            return original(iterator)

        dataloader._BaseDataLoaderIter.__next__ = limited  # type: ignore[method-assign, assignment]
        report = threading.excepthook

        def unless_stopped(ended: threading.ExceptHookArgs) -> None:
            if not issubclass(ended.exc_type, StopWorkload):
                report(ended)

        threading.excepthook = unless_stopped
        before = signal.signal(STOP_SIGNAL, self._time_is_up)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL})
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.signal(STOP_SIGNAL, before)
            threading.excepthook = report
            dataloader._BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign]

    def _time_is_up(self, _signal: int, _frame: Any) -> None:
        self.timed_out = True
        self._stop()
