"""The options of ``ebbtide fit`` that ``ebbtide predict`` does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

GpuName = Annotated[
    str | None,
    typer.Option("--gpu", "-g", help="GPU to plan for. Default: a100-80gb.", metavar="NAME"),
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="The most that PyTorch may allocate, such as 8GiB. Default: what the GPU has for it.",
        metavar="SIZE",
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="Write the plan: for `ebbtide run --plan`, or to read and edit.",
        metavar="FILE",
        rich_help_panel="Output",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the plan as JSON.", rich_help_panel="Output")
]
Force = Annotated[
    bool, typer.Option("--force", help="Overwrite that file.", rich_help_panel="Output")
]
