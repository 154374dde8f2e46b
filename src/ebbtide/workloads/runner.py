"""Start the process that runs a workload, and collect its traces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ebbtide
from ebbtide.errors import VirtualGpuError
from ebbtide.trace.file import load_trace
from ebbtide.trace.model import Trace
from ebbtide.workloads.descendants import MARK, end_marked
from ebbtide.workloads.failures import unpack
from ebbtide.workloads.request import Request

Progress = Callable[[dict[str, Any]], None]
_CHILD = ("-m", "ebbtide.workloads.child")
# How long a workload may take to put its things away after Ctrl-C.
_GOODBYE_S = 5.0
# What asks this process to end, beside Ctrl-C. (Windows has no SIGHUP.)
_ENDINGS = (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))


@dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    """What a workload did on one GPU.

    Attributes:
        answer: the trace asked for.
        batches: at other batch sizes, ascending.
        seqs: at other numbers of tokens, ascending.
        no_curve: why `batches` is empty or short, "" where it is neither.
        no_seqs: the same of `seqs`.
    """

    answer: Trace
    batches: tuple[Trace, ...] = ()
    seqs: tuple[Trace, ...] = ()
    no_curve: str = ""
    no_seqs: str = ""


def run_request(request: Request, progress: Progress | None = None) -> dict[str, Traces]:
    """Run `request` in a process of its own.

    Nothing is left of it: neither processes nor files, also after Ctrl-C.

    Args:
        request: what to run; its `folder` is replaced by a temporary one.
        progress: called with each message of the process.

    Returns:
        Traces by the key of the GPU.

    Raises:
        EbbtideError: what the process reported, as the same class.
        VirtualGpuError: the process died without a word.
    """
    with running(request, progress) as messages:
        return {gpu: _traces(messages, gpu) for gpu in request.gpus}


@contextlib.contextmanager
def running(
    request: Request, progress: Progress | None = None, module: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """What `module` says of `request`, in a process of its own that is over.

    The files that it wrote are there in the context, and gone after it.

    Args:
        request: what to run; its `folder` is replaced by a temporary one.
        progress: called with each message of the process.
        module: run as ``python -m MODULE REQUEST``; by default the one that traces.

    Raises:
        EbbtideError: what the process reported, as the same class.
        VirtualGpuError: the process died without a word.
    """
    with _terminable(), tempfile.TemporaryDirectory(prefix="ebbtide-") as folder:
        path = Path(folder) / "request.json"
        path.write_text(replace(request, folder=folder).to_text())
        messages = []
        # Closed here and not by the collector: no process outlives its folder.
        with contextlib.closing(_messages(path, ("-m", module) if module else _CHILD)) as arriving:
            for message in arriving:
                if message["event"] == "error":
                    raise unpack(message)
                if message["event"] != "phase":
                    messages.append(message)
                if progress is not None:
                    progress(message)
        yield messages


def _traces(messages: list[dict[str, Any]], gpu: str) -> Traces:
    found: dict[str, list[Trace]] = {"answer": [], "batch": [], "seq": []}
    missing = {"batch": "", "seq": ""}
    for message in messages:
        if message["gpu"] != gpu:
            continue
        if message["event"] == "trace":
            found[message["axis"]].append(load_trace(message["path"]))
        else:
            missing[message["axis"]] = message["text"]
    return Traces(
        answer=found["answer"][0],
        batches=tuple(found["batch"]),
        seqs=tuple(found["seq"]),
        no_curve=missing["batch"],
        no_seqs=missing["seq"],
    )


def _messages(path: Path, child: tuple[str, ...]) -> Generator[dict[str, Any], None, None]:
    """The messages of a process that runs the request at `path`, until it is done."""
    command = [sys.executable, *child, str(path)]
    # A session of its own: Ctrl-C comes here alone, and whatever it starts can be ended with it.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(path.parent),
        start_new_session=True,
    )
    begun = False
    try:
        for line in process.stdout or ():
            begun = True
            message = json.loads(line)
            if message["event"] == "done":
                return
            yield message
            if message["event"] == "error":
                return
    except GeneratorExit:
        raise
    except BaseException:  # Ctrl-C, mostly
        if not begun:  # it has nothing to put away, and would show where its import was
            raise
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_GOODBYE_S)
        raise
    finally:
        _end(process)
        end_marked(str(path.parent))
    raise VirtualGpuError(_ending(process.returncode))


def _ending(code: int) -> str:
    """What to say of a process that ended with `code` and nothing else."""
    if code == -signal.SIGKILL:
        return (
            "The process that ran the workload was killed (SIGKILL). This machine may be out of "
            "memory, or the workload ends its own process group."
        )
    return (
        f"The process that ran the workload ended with code {code} and gave no "
        "reason. Run `python -m ebbtide.vgpu.selftest` to see whether the virtual GPU works with "
        "this torch; if it does, please report this with the command you ran."
    )


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and what it has started; its number is its group's while it is not reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, end this process in good order."""

    def end(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [each for each in _ENDINGS if signal.getsignal(each) is signal.SIG_DFL]
    for each in ours:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _environment(folder: Path) -> dict[str, str]:
    # Ebbtide itself may have been found through sys.path alone.
    root = str(Path(ebbtide.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(p for p in (root, inherited) if p)
    return {
        # PyTorch makes this folder when it is imported; it goes with ours.
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        **os.environ,
        MARK: str(folder),
        "PYTHONPATH": path,
        # This process watches that one, so no self-test has to come first.
        "EBBTIDE_SELFTEST": "0",
    }
