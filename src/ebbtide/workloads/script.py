"""Run somebody's script on the virtual GPU, unmodified."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ebbtide.errors import EbbtideError, ScriptError
from ebbtide.trace.model import Trace
from ebbtide.trace.recorder import Recorder
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.batches import LoaderBatches
from ebbtide.workloads.failures import OutOfVirtualMemoryError
from ebbtide.workloads.stopping import Stopper, StopWorkload
from ebbtide.workloads.torchvision_mend import mend_torchvision

_OWN = str(Path(__file__).parents[1]) + os.sep
# Frames that are not the user's: ours, and those of Python's import.
_NOT_THEIRS = (_OWN, "<frozen", str(Path(importlib.__file__).parent) + os.sep)


class ScriptRun:
    """One run of a script.

    Args:
        path: of the script.
        args: its arguments.
        gpu: a virtual GPU that is not on yet.
        loaders: sees and changes the batch sizes of its data loaders.
        meta: kept with the trace.
    """

    def __init__(
        self,
        path: str,
        args: Sequence[str],
        gpu: VirtualGpu,
        loaders: LoaderBatches | None = None,
        **meta: Any,
    ) -> None:
        self.path = path
        self.name = Path(path).name
        self.args = list(args)
        self.gpu = gpu
        self.loaders = loaders if loaders is not None else LoaderBatches()
        self.recorder = Recorder(gpu)
        self._meta = meta

    def trace(
        self,
        *,
        swallowed: Callable[[Trace], object] | None = None,
        started: Callable[[], object] = lambda: None,
        at_exit: Callable[[], object] = lambda: None,
        inside: AbstractContextManager[object] | None = None,
    ) -> Trace:
        """Run the script as ``python PATH ARGS...`` would, and return what it did.

        The process is changed as by running the script: `sys.argv`, `sys.path`, modules.

        Args:
            swallowed: called with the trace, and to end the process, where the script
                catches every attempt to end it.
            started: called when `STOP_SIGNAL` can be sent.
            at_exit: called when the script has ended, still on the virtual GPU.
            inside: entered on the virtual GPU, around the script.

        Raises:
            OutOfVirtualMemoryError: it ran out of memory and did not get over it.
            ScriptError: it failed in another way (its traceback is on stderr), or it
                sent nothing to `cuda`.
        """
        sys.argv = [self.path, *self.args]
        sys.path.insert(0, str(Path(self.path).resolve().parent))
        mend_torchvision()
        with self.gpu, self.recorder:
            stopper = Stopper(
                self.gpu,
                self.recorder,
                swallowed=lambda: swallowed(self._finished()) if swallowed else None,
            )
            self._listen(stopper)
            with self.loaders.watching(), stopper.watching(), inside or nullcontext():
                started()
                self._run(stopper)
                at_exit()
            self._check_memory()
            if stopper.timed_out:
                self.gpu.guess(
                    "time", f"{self.name} was stopped after its time; later phases are missing"
                )
        return self._finished()

    def _listen(self, stopper: Stopper) -> None:
        def after_step(steps: int) -> None:
            self.loaders.stepped(steps)
            stopper.after_step(steps)

        self.recorder.on_step(after_step)
        self.recorder.on_forward(stopper.after_forward)

    def _run(self, stopper: Stopper) -> None:
        try:
            runpy.run_path(self.path, run_name="__main__")
        except StopWorkload:
            pass
        except KeyboardInterrupt:
            raise
        except SystemExit as end:
            if end.code not in (None, 0) and not stopper.enough:
                self._ended(end)
        except torch.OutOfMemoryError as error:
            raise OutOfVirtualMemoryError(str(error)) from error
        except BaseException as error:
            if not stopper.enough:
                self._failed(error)
            # It checks results that it would have had, if its data had not ended early.
            self.gpu.guess(
                "ended",
                f"{failure_of(self.name, error, shown=False)} after the steps that were needed: "
                "what it would have done then is missing",
            )

    def _ended(self, end: SystemExit) -> None:
        if self.gpu.memory.failures:
            raise OutOfVirtualMemoryError(f"{self.name} ended itself with {end.code!r}") from end
        raise _ended(self.name, end) from end

    def _failed(self, error: BaseException) -> None:
        if self.gpu.memory.failures:  # it may have wrapped torch's error in one of its own
            raise OutOfVirtualMemoryError(_text_of(error)) from error
        print_own_traceback(error)
        if isinstance(error, EbbtideError):
            raise error
        raise ScriptError(failure_of(self.name, error)) from error

    def _check_memory(self) -> None:
        """Whether a script that caught torch's error did with less, or gave up."""
        failures = self.gpu.memory.failures
        if not failures:
            return
        recorder = self.recorder
        # A module call that ran out of memory counts as a forward too.
        done = recorder.steps if recorder.trained else recorder.forwards - failures
        if done <= 0:
            raise OutOfVirtualMemoryError(f"{self.name} caught the error and gave up")
        self.gpu.guess(
            "out-of-memory",
            f"{self.name} ran out of the {self.gpu.spec.name}'s memory, caught the error and went "
            "on with less; the peak is of the whole run, so it may be that of a try that failed",
        )

    def _finished(self) -> Trace:
        trace = self.recorder.trace(
            target=self.path,
            args=self.args,
            batch=self.loaders.batch,
            loader_batch=self.loaders.of,
            batches=self.loaders.batches,
            caught_out_of_memory=self.gpu.memory.failures,
            steps=self.recorder.steps,
            forwards=self.recorder.forwards,
            **self._meta,
        )
        trace.meta["accumulated"] = accumulated(trace, self.loaders.accumulated)
        if not len(trace.allocs.op):
            raise ScriptError(
                f"{self.name} ended without putting anything on `cuda`. Does it choose its device "
                "by an argument? Pass it after `--`, for example: -- --device cuda"
            )
        return trace


def accumulated(trace: Trace, batches: int) -> int:
    """How many batches of a data loader make one step, at least 1.

    No more than backward passes (another loader may serve unlabelled data), and no more
    than `batches` served (a GAN runs backward several times on one).
    """
    second = Counter(
        phase.step for phase in trace.phases if phase.name == "backward" and phase.step > 1
    )
    return max(1, min(batches, min(second.values(), default=1)))


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Turn what the user's code raises into a `ScriptError`, with its traceback on stderr.

    Args:
        name: of the code, for the message.
    """
    try:
        yield
    except EbbtideError:
        raise
    except SystemExit as end:
        raise _ended(name, end) from end
    except Exception as error:
        print_own_traceback(error)
        raise ScriptError(failure_of(name, error)) from error


def _ended(name: str, end: SystemExit) -> ScriptError:
    """The error of code that ended its process, whose last words are printed."""
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
    return ScriptError(f"{name} ended itself with {end.code!r}; what it printed is above.")


def failure_of(name: str, error: BaseException, shown: bool = True) -> str:
    """One line on how the user's code failed.

    Args:
        name: of the code.
        error: what it raised.
        shown: whether its traceback has been printed.
    """
    lines = _text_of(error).strip().splitlines()
    text = f"{name} failed with {type(error).__name__}"
    text += f": {lines[0].rstrip('.')}" if lines else ""
    if not shown:
        return text
    if isinstance(error, EOFError):
        return f"{text}. A script is run without standard input: pass what it asks as arguments."
    return f"{text} (its traceback is above)"


def _text_of(error: BaseException) -> str:
    """Its message; what a program's own exceptions do to say it may fail in turn."""
    try:
        return str(error)
    except Exception:
        return ""


def print_own_traceback(error: BaseException) -> None:
    """The traceback from the user's first frame on, as running it would print it."""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THEIRS):
            break
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace, file=sys.stderr)
