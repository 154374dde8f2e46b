"""The process that plans a target: ``python -m ebbtide.fitting.child REQUEST``.

As `ebbtide.workloads.child` does, it answers in JSON lines, and runs what is the user's in
forks.
"""

from __future__ import annotations

import os
from pathlib import Path

from ebbtide.errors import UsageError
from ebbtide.fitting.making import made
from ebbtide.fitting.planner import find_plan
from ebbtide.fitting.subject import Subject
from ebbtide.fitting.targets import architecture, function, script
from ebbtide.fitting.virtual import room
from ebbtide.gpus import Gpu, find
from ebbtide.workloads.child import Answers, answer, forks_of, import_heavy
from ebbtide.workloads.forking import leave
from ebbtide.workloads.request import Request
from ebbtide.workloads.script import reported
from ebbtide.workloads.torchvision_mend import mend_torchvision


def main() -> int:
    """Plan what the request file says. Returns the exit code."""
    return answer(_plan)


def _plan(request: Request, answers: Answers) -> None:
    gpu = find(request.gpus[0])
    budget = request.budget_bytes if request.budget_bytes is not None else room(gpu)
    with reported(request.target):
        subject = _subject(request, gpu, answers)
        found = find_plan(
            subject,
            budget,
            lambda text: answers.send(
                "phase", text=text, gpu=gpu.key, batch=request.batch, quiet=True
            ),
        )
        plan = made(found, budget, where=gpu.key)
    path = Path(request.folder) / "plan.json"
    plan.save(path)
    answers.send("plan", path=str(path))


def _subject(request: Request, gpu: Gpu, answers: Answers) -> Subject:
    if request.kind == "trace":
        raise UsageError(
            f"{request.target} is a saved trace: it says when memory was taken and not from what. "
            "Name the script, the function or the architecture itself."
        )
    if request.kind == "architecture":
        _quiet(request)
        return architecture(request, gpu)
    if request.kind == "script":
        import_heavy(Path(request.target))
        return script(request, gpu, forks_of(request, answers))
    mend_torchvision()
    return function(request, gpu, forks_of(request, answers))


def _quiet(request: Request) -> None:
    """What libraries say while they build a model is not the user's code."""
    log = os.open(Path(request.folder) / "output.log", os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    leave(main())
