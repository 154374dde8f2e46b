"""The process that runs a workload: ``python -m ebbtide.workloads.child REQUEST``.

Answers are JSON lines on the standard output that it was started with; what the
workload prints goes to stderr, so that nothing gets mixed up. A script is run in
a fork for each GPU and batch size: imports are paid once, and what a script does
to the process is gone with it.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide.errors import EbbtideError
from ebbtide.workloads.failures import OutOfVirtualMemoryError, pack
from ebbtide.workloads.forking import Forks, die_with_parent, leave
from ebbtide.workloads.request import Request
from ebbtide.workloads.tracing import Job, trace_all

# Worth importing before the fork if the script asks for them.
_HEAVY = frozenset(
    "torch transformers torchvision timm lightning pytorch_lightning accelerate peft "
    "datasets diffusers sklearn pandas scipy numpy torchmetrics einops".split()
)
# How long handlers that a script has registered with `atexit` may take.
_EXIT_S = 5.0


class Answers:
    """Writes answers to the parent; from then on stdout is stderr."""

    def __init__(self) -> None:
        self.descriptor = os.dup(1)
        os.dup2(2, 1)

    def send(self, event: str, **data: object) -> None:
        """One line."""
        os.write(self.descriptor, (json.dumps({"event": event, **data}) + "\n").encode())


def main() -> int:
    """Run what the request file says. Returns the exit code."""
    return answer(_trace)


def answer(work: Callable[[Request, Answers], object]) -> int:
    """Do `work` on the request file that this process was started with. Returns the exit code."""
    die_with_parent()
    answers = Answers()
    request = Request.from_text(Path(sys.argv[1]).read_text())
    answers.send("phase", text="importing")
    try:
        work(request, answers)
    except EbbtideError as error:
        answers.send("error", **pack(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    answers.send("done")
    return 0


def _trace(request: Request, answers: Answers) -> None:
    if request.kind == "script":
        _scripts(request, answers)
    elif request.kind == "function":
        _functions(request, answers)
    else:
        _architecture(request, answers)


def _scripts(request: Request, answers: Answers) -> None:
    import_heavy(Path(request.target))
    forks = forks_of(request, answers)

    def trace(job: Job, path: Path) -> None:
        def run(enforce: bool, quiet: bool) -> None:
            forks.run(
                lambda: script_trace(request, job, path, forks, enforce),
                seconds=request.seconds,
                quiet=quiet,
            )

        try:
            # Within the GPU's memory first: a script may catch the error and do with less.
            run(enforce=job.answers, quiet=job.quiet)
        except OutOfVirtualMemoryError:
            answers.send("phase", text="unlimited", gpu=job.gpu, batch=job.batch, quiet=True)
            run(enforce=False, quiet=True)

    trace_all(request, answers.send, trace)


def forks_of(request: Request, answers: Answers) -> Forks:
    """Forks of this process that have what they will need."""
    from ebbtide.workloads.stopping import STOP_SIGNAL

    warm(request.gpus[0])
    return Forks(Path(request.folder), STOP_SIGNAL, close=(answers.descriptor,))


def warm(gpu: str) -> None:
    """Import what every fork will need: 2 s that are paid once."""
    from ebbtide.vgpu import api
    from ebbtide.vgpu.virtual_gpu import VirtualGpu

    VirtualGpu(gpu)  # PyTorch imports SymPy and more for its fake tensors here
    for module in pkgutil.iter_modules(api.__path__, f"{api.__name__}."):
        importlib.import_module(module.name)


def script_trace(request: Request, job: Job, path: Path, forks: Forks, enforce: bool) -> None:
    """Trace a script in this process, which is not to be used afterwards.

    Args:
        request: which script, with which arguments.
        job: where, and at which batch size.
        path: of the trace's file.
        forks: told when the script starts.
        enforce: whether memory ends where that of the GPU does.

    Raises:
        EbbtideError: the script failed, see `ScriptRun.trace`.
    """
    from ebbtide.trace.file import save_trace
    from ebbtide.trace.model import Trace
    from ebbtide.vgpu.virtual_gpu import VirtualGpu
    from ebbtide.workloads.batches import LoaderBatches
    from ebbtide.workloads.script import ScriptRun

    def save_and_leave(trace: Trace) -> None:
        save_trace(trace, path)
        leave(0)

    run = ScriptRun(
        request.target,
        job.arguments(request.args),
        VirtualGpu(job.gpu, torch_version=request.torch_version, enforce=enforce),
        LoaderBatches(job.loader_batch, job.loader_batch_now),
    )
    trace = run.trace(swallowed=save_and_leave, started=forks.started, at_exit=run_exit_handlers)
    job.check(trace)
    save_trace(trace, path)


def run_exit_handlers() -> None:
    """Run what the script has registered with `atexit`, for a while."""

    def enough(_signal: int, _frame: Any) -> None:
        raise TimeoutError(f"handlers at exit took longer than {_EXIT_S:.0f} s")

    signal.signal(signal.SIGALRM, enough)
    signal.setitimer(signal.ITIMER_REAL, _EXIT_S)
    atexit._run_exitfuncs()
    signal.setitimer(signal.ITIMER_REAL, 0)


def import_heavy(script: Path) -> None:
    """Import the heavy packages that the script at `script` imports."""
    found = heavy_imports(script)
    if found:
        from ebbtide.workloads.torchvision_mend import mend_torchvision

        mend_torchvision()  # Transformers and timm import torchvision too
    # What is imported here is not the script's doing, and what fails here it will say itself.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, names in found.items():
            with contextlib.suppress(Exception):
                loaded = importlib.import_module(module)
                for name in names:  # Transformers imports its models when they are asked for
                    getattr(loaded, name, None)


def heavy_imports(path: Path) -> dict[str, list[str]]:
    """Modules of heavy packages that the script at `path` imports, and names taken from each."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules: dict[str, list[str]] = {alias.name: [] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = {node.module: [alias.name for alias in node.names]}
        else:
            continue
        for module, names in modules.items():
            if module.partition(".")[0] in _HEAVY:
                found.setdefault(module, []).extend(names)
    return found


def _functions(request: Request, answers: Answers) -> None:
    """In forks too: a module is imported anew for each trace."""
    from ebbtide.trace.file import save_trace
    from ebbtide.workloads.model_run import run_model
    from ebbtide.workloads.script import reported

    forks = forks_of(request, answers)

    def work(job: Job, path: Path) -> None:
        forks.started()
        with reported(request.target):
            save_trace(run_model(request, job.gpu, job.batch), path)

    def trace(job: Job, path: Path) -> None:
        forks.run(lambda: work(job, path), seconds=request.seconds, quiet=job.quiet)

    trace_all(request, answers.send, trace)


def _architecture(request: Request, answers: Answers) -> None:
    """What libraries say while they build a model is kept back: it is not the user's code."""
    from ebbtide.trace.file import save_trace
    from ebbtide.workloads.model_run import run_model
    from ebbtide.workloads.script import reported

    log = os.open(Path(request.folder) / "output.log", os.O_RDWR | os.O_CREAT, 0o600)
    shown = os.dup(2)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def trace(job: Job, path: Path) -> None:
        save_trace(run_model(request, job.gpu, job.batch, job.seq), path)

    try:
        trace_all(request, answers.send, trace)
    except EbbtideError:
        os.dup2(shown, 2)
        raise
    except Exception as error:
        os.dup2(shown, 2)
        with reported(request.target):
            raise error


if __name__ == "__main__":
    leave(main())
