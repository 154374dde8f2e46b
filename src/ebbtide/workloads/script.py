"""Run somebody's script on the virtual GPU, unmodified."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from ebbtide.errors import ScriptError
from ebbtide.trace.model import Trace
from ebbtide.trace.recorder import Recorder
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.batches import LoaderBatches
from ebbtide.workloads.stopping import Stopper, StopWorkload
from ebbtide.workloads.torchvision_mend import mend_torchvision

_OWN = str(Path(__file__).parents[1]) + os.sep


class OutOfVirtualMemoryError(ScriptError):
    """The script ended because the virtual GPU's memory did."""


def run_script(
    path: str,
    args: Sequence[str],
    gpu: VirtualGpu,
    *,
    seconds: float = 600.0,
    loader_batch: tuple[int, int] | None = None,
) -> Trace:
    """Run the script at `path` as ``python path args...`` would, and record it.

    The process is changed as by running the script: `sys.argv`, `sys.path`, modules.

    Args:
        path: of the script.
        args: its arguments.
        gpu: a virtual GPU that is not on yet.
        seconds: stop at the latest after this long.
        loader_batch: (from, to): data loaders of the first batch size get the second.

    Raises:
        OutOfVirtualMemoryError: the script did not catch `torch.OutOfMemoryError`.
        ScriptError: it failed in another way (its traceback is on stderr), or it
            sent nothing to `cuda`.
    """
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    mend_torchvision()
    name = Path(path).name
    with gpu, Recorder(gpu) as recorder:
        stopper = Stopper(gpu, recorder, seconds=seconds)
        recorder.on_step(stopper.after_step)
        recorder.on_forward(stopper.after_forward)
        loaders = LoaderBatches(loader_batch)
        with stopper.watching(), loaders.watching():
            _run(path, name)
        if gpu.memory.failures:
            gpu.guess(
                "out-of-memory",
                f"{name} ran out of the {gpu.spec.name}'s memory, caught the error and went on",
            )
        if stopper.timed_out:
            gpu.guess("time", f"{name} was stopped after {seconds:.0f} s; later phases are missing")
    trace = recorder.trace(
        target=path,
        args=list(args),
        batch=loader_batch[1] if loader_batch else loaders.batch,
        caught_out_of_memory=gpu.memory.failures,
        steps=recorder.steps,
        forwards=recorder.forwards,
    )
    if not len(trace.allocs.op):
        raise ScriptError(
            f"{name} ended without putting anything on `cuda`. Does it choose its device by "
            "an argument? Pass it after `--`, for example: -- --device cuda"
        )
    return trace


def _run(path: str, name: str) -> None:
    try:
        runpy.run_path(path, run_name="__main__")
    except StopWorkload:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ScriptError(
                f"{name} ended itself with {end.code!r}; what it printed is above."
            ) from end
    except torch.OutOfMemoryError as error:
        raise OutOfVirtualMemoryError(str(error)) from error
    except BaseException as error:
        _print_own_traceback(error)
        raise ScriptError(
            f"{name} failed with {type(error).__name__}: {error} (its traceback is above)"
        ) from error


def _print_own_traceback(error: BaseException) -> None:
    """The traceback from the script's first frame on, as running it would print it."""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OWN, "<frozen")) and "runpy" not in file:
            break
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__, file=sys.stderr)
