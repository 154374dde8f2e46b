"""What TARGET on the command line means, as something that takes steps to be planned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ebbtide.errors import UsageError
from ebbtide.fitting.second_step import SecondStep
from ebbtide.fitting.subject import Replay, Subject
from ebbtide.fitting.virtual import VirtualSubject, limited
from ebbtide.gpus import Gpu
from ebbtide.plan.decision import Decision
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.graph_file import load_graph, save_graph
from ebbtide.train.carry_out import carried_out
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.architectures import build, find
from ebbtide.workloads.child import run_exit_handlers
from ebbtide.workloads.entry import FunctionWorkload, load_function
from ebbtide.workloads.failures import OutOfVirtualMemoryError
from ebbtide.workloads.forking import Forks
from ebbtide.workloads.request import Request
from ebbtide.workloads.script import ScriptRun, reported
from ebbtide.workloads.tracing import Job


def architecture(request: Request, gpu: Gpu) -> Subject:
    """An architecture in the ordinary training loop."""
    found, options = find(request.target, request.options)
    if options.inference:
        raise UsageError("--inference: there is no step to plan. `ebbtide predict` answers that.")

    @contextmanager
    def make(decision: Decision) -> Iterator[Callable[[], Any]]:
        running = build(found, options, "cuda")
        with carried_out(decision):
            yield lambda: running.step(0)

    return VirtualSubject(make, gpu)


class Forked:
    """A subject that does each thing in a fork of this process.

    Args:
        inner: a function or script, run anew each time.
        forks: where.
        request: for how long.
        folder: for what comes back.
    """

    virtual = True
    steps = False
    batch_size = 1

    def __init__(self, inner: Subject, forks: Forks, request: Request) -> None:
        self._inner, self._forks, self._request = inner, forks, request
        self._runs = 0

    def survey(self, decision: Decision) -> StepGraph:
        """In a fork."""
        path = self._path()
        self._run(lambda: save_graph(self._inner.survey(decision), path))
        return load_graph(path)

    def replay(self, decision: Decision, limit_bytes: int) -> Replay:
        """In a fork."""
        path = self._path()

        def work() -> None:
            found = self._inner.replay(decision, limit_bytes)
            path.write_text(json.dumps([found.peak_bytes, found.fits]))

        self._run(work)
        peak_bytes, fits = json.loads(path.read_text())
        return Replay(peak_bytes, fits)

    def _path(self) -> Path:
        self._runs += 1
        return Path(self._request.folder) / f"{self._runs}.json"

    def _run(self, work: Callable[[], object]) -> None:
        quiet = self._runs > 1
        self._forks.run(work, seconds=self._request.seconds, quiet=quiet)


def function(request: Request, gpu: Gpu, forks: Forks) -> Subject:
    """What ``module:function`` builds."""

    @contextmanager
    def make(decision: Decision) -> Iterator[Callable[[], Any]]:
        forks.started()
        with reported(request.target):
            workload = FunctionWorkload(
                load_function(request.target), request.batch, request.target
            )
            if workload.inference:
                raise UsageError(
                    f"{request.target} returns no optimizer and no loss function: there is no step "
                    "to plan."
                )
            with carried_out(decision):
                yield workload.step

    return Forked(VirtualSubject(make, gpu), forks, request)


class _Script:
    """A script, unmodified."""

    virtual = True
    steps = False
    batch_size = 1

    def __init__(self, request: Request, gpu: Gpu, forks: Forks) -> None:
        self._request, self._gpu, self._forks = request, gpu, forks

    def survey(self, decision: Decision) -> StepGraph:
        watch = SecondStep()
        self._run(VirtualGpu(self._gpu), watch)
        if watch.survey is None or not watch.complete:
            raise UsageError(
                f"{Path(self._request.target).name} took fewer than two optimizer steps: there is "
                "no step to plan. Give it more data, or more steps."
            )
        return watch.survey.graph()

    def replay(self, decision: Decision, limit_bytes: int) -> Replay:
        gpu = limited(self._gpu, decision, limit_bytes)
        try:
            self._run(gpu, carried_out(decision))
        except OutOfVirtualMemoryError:
            return Replay(gpu.memory.max_memory_allocated(), fits=False)
        return Replay(gpu.memory.max_memory_allocated(), fits=True)

    def _run(self, gpu: VirtualGpu, inside: AbstractContextManager[object]) -> None:
        job = Job(gpu=self._gpu.key, batch=self._request.batch)
        run = ScriptRun(self._request.target, job.arguments(self._request.args), gpu)
        run.trace(started=self._forks.started, at_exit=run_exit_handlers, inside=inside)


def script(request: Request, gpu: Gpu, forks: Forks) -> Subject:
    """A script as it is."""
    return Forked(_Script(request, gpu, forks), forks, request)
