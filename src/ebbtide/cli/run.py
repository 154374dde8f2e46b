"""``ebbtide run``: run a program under a plan."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.errors import UsageError
from ebbtide.fitting.environment import environment

Command = Annotated[
    list[str], typer.Argument(help="The program and its arguments, after `--`.", metavar="COMMAND")
]
PlanFile = Annotated[
    Path, typer.Option("--plan", help="A plan that `ebbtide fit --plan` wrote.", metavar="FILE")
]


def run(command: Command, plan: PlanFile) -> None:
    """Run a program, as it is, under a plan: ebbtide run --plan plan.json -- python train.py.

    Its training steps keep and recompute what the plan says. The exit code is the program's.
    """
    changed = environment(plan, os.environ)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, changed)
    except OSError as error:
        raise UsageError(
            f"{command[0]!r} cannot be run: {error.strerror}. Write the program as in a shell: "
            "ebbtide run --plan plan.json -- python train.py"
        ) from error
