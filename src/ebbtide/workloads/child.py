"""The process that runs a workload: ``python -m ebbtide.workloads.child REQUEST``.

Answers are JSON lines on the standard output that it was started with; what the
workload prints goes to stderr, so that nothing gets mixed up. A script is run in
a fork for each GPU and batch size: imports are paid once, and what a script does
to the process is gone with it.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ebbtide.errors import EbbtideError
from ebbtide.workloads.batches import PLACEHOLDER, another_batch
from ebbtide.workloads.request import Request

# Traces on a GPU at a batch size (None: the target's own, given as the third) into a file.
Tracer = Callable[[str, int | None, int | None, Path], None]

# Worth importing before the fork if the script asks for them.
_HEAVY = frozenset(
    "torch transformers torchvision timm lightning pytorch_lightning accelerate peft "
    "datasets diffusers sklearn pandas scipy numpy torchmetrics einops".split()
)


class Answers:
    """Writes answers to the parent."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        if not isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout = sys.stderr

    def send(self, event: str, **data: object) -> None:
        """One line."""
        self._out.write(json.dumps({"event": event, **data}) + "\n")
        self._out.flush()


def main() -> int:
    """Run what the request file says. Returns the exit code."""
    answers = Answers()
    request = Request.from_text(Path(sys.argv[1]).read_text())
    try:
        if request.kind == "script":
            _scripts(request, answers)
        else:
            _models(request, answers)
    except EbbtideError as error:
        answers.send(
            "error", kind=type(error).__name__, text=str(error), exit_code=error.exit_code
        )
        return error.exit_code
    except Exception as error:  # the workload's own code
        from ebbtide.workloads.script import _print_own_traceback

        _print_own_traceback(error)
        answers.send(
            "error",
            kind="ScriptError",
            text=f"{request.target} failed with {type(error).__name__}: {error} "
            "(its traceback is above)",
            exit_code=2,
        )
        return 2
    answers.send("done")
    return 0


def _scripts(request: Request, answers: Answers) -> None:
    answers.send("phase", text="importing")
    from ebbtide.workloads.script import OutOfVirtualMemoryError

    for name in heavy_imports(Path(request.target)):
        try:
            importlib.import_module(name)
        except Exception:  # the script will say so itself
            continue
    by_argument = any(PLACEHOLDER in arg for arg in request.args)

    def trace(gpu: str, batch: int | None, own: int | None, path: Path) -> None:
        change = (own, batch) if own and batch and not by_argument else None
        try:
            # Within the GPU's memory first: a script may catch the error and do with less.
            _forked(lambda: _script(request, gpu, batch, change, path, enforce=True))
        except OutOfVirtualMemoryError:
            answers.send("phase", text="tracing without limit", gpu=gpu, batch=batch)
            _forked(lambda: _script(request, gpu, batch, change, path, enforce=False))

    _trace_all(request, answers, trace)


def _trace_all(request: Request, answers: Answers, trace: Tracer) -> None:
    """A trace for each GPU, and one at another batch size for the curve."""
    from ebbtide.trace.file import load_trace

    for gpu in request.gpus:
        first = request.batch
        path = _timed(request, answers, trace, gpu, first, None)
        own = first if first is not None else load_trace(path).meta.get("batch")
        if not request.curve or not own:
            continue
        try:
            _timed(request, answers, trace, gpu, another_batch(own), own)
        except EbbtideError as error:
            # The prediction stands; only the curve is missing.
            answers.send("no-curve", gpu=gpu, text=str(error))


def _timed(
    request: Request,
    answers: Answers,
    trace: Tracer,
    gpu: str,
    batch: int | None,
    own: int | None,
) -> Path:
    answers.send("phase", text="tracing", gpu=gpu, batch=batch)
    started = time.perf_counter()
    path = Path(request.folder) / f"{gpu}-{batch or 'own'}.trace"
    trace(gpu, batch, own, path)
    answers.send("trace", gpu=gpu, path=str(path), seconds=time.perf_counter() - started)
    return path


def _script(
    request: Request,
    gpu: str,
    batch: int | None,
    change: tuple[int, int] | None,
    path: Path,
    enforce: bool,
) -> None:
    from ebbtide.trace.file import save_trace
    from ebbtide.vgpu.virtual_gpu import VirtualGpu
    from ebbtide.workloads.script import run_script

    args = [arg.replace(PLACEHOLDER, str(batch)) if batch else arg for arg in request.args]
    virtual = VirtualGpu(gpu, torch_version=request.torch_version, enforce=enforce)
    trace = run_script(
        request.target, args, virtual, seconds=request.seconds, loader_batch=change
    )
    if batch is not None:
        trace.meta["batch"] = batch
    save_trace(trace, path)


def _forked(work: Callable[[], None]) -> None:
    """Run `work` in a fork; an `EbbtideError` there is raised here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = _work(work, writing)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        from ebbtide import errors

        failure = json.loads(text)
        from ebbtide.workloads.script import OutOfVirtualMemoryError

        known = {"OutOfVirtualMemoryError": OutOfVirtualMemoryError, **vars(errors)}
        kind = known.get(failure["kind"], errors.ScriptError)
        raise kind(failure["text"])
    if status != 0:
        from ebbtide.errors import ScriptError

        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {status >> 8}"
        raise ScriptError(f"The process that ran the script ended with {how}; see its output above.")


def _work(work: Callable[[], None], writing: int) -> int:
    try:
        work()
    except EbbtideError as error:
        os.write(writing, json.dumps({"kind": type(error).__name__, "text": str(error)}).encode())
        return 1
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    return 0


def heavy_imports(path: Path) -> list[str]:
    """Known heavy packages that the script at `path` imports, in its order."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            if top in _HEAVY and top not in found:
                found.append(top)
    return found


def _models(request: Request, answers: Answers) -> None:
    answers.send("phase", text="importing")
    from ebbtide.trace.file import save_trace
    from ebbtide.workloads.model_run import run_model

    def trace(gpu: str, batch: int | None, _own: int | None, path: Path) -> None:
        save_trace(run_model(request, gpu, batch), path)

    _trace_all(request, answers, trace)


if __name__ == "__main__":
    sys.exit(main())
