"""A plan in the terminal: the verdict, what is done and why, what other budgets would cost."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from ebbtide.fitting.plan import Plan
from ebbtide.gpus import Gpu
from ebbtide.units import format_bytes, format_seconds


def render(plan: Plan, gpu: Gpu, console: Console, path: Path | None) -> None:
    """Print `plan`, made for `gpu` and written to `path`, to `console`."""
    mark = "OK" if console.options.ascii_only else "\N{HEAVY CHECK MARK}"
    console.print(Text(f"{mark} {_verdict(plan, gpu)}", style="bold green"))
    console.print()
    console.print(Padding(_figures(plan, gpu), (0, 0, 0, 2)))
    console.print()
    if plan.techniques:
        console.print(_techniques(plan))
    else:
        console.print("Nothing needs to be done.")
    if len(plan.front) > 1:
        console.print()
        console.print("What other budgets would cost:")
        console.print(Padding(_front(plan), (0, 0, 0, 2)))
    if path is not None:
        console.print()
        console.print(f"The plan: {path}", highlight=False)


def _verdict(plan: Plan, gpu: Gpu) -> str:
    peak, budget = format_bytes(plan.predicted_peak_bytes), format_bytes(plan.budget_bytes)
    if not plan.techniques:
        return f"Fits as it is: {peak} of {budget} on the {gpu.name}"
    return f"Fits with a plan: {peak} of {budget} on the {gpu.name}"


def _number() -> Column:
    return Column(justify="right", no_wrap=True)


def _figures(plan: Plan, gpu: Gpu) -> Table:
    grid = Table.grid(Column(), _number(), Column(style="dim"), padding=(0, 2, 0, 0))
    grid.add_row("peak", format_bytes(plan.predicted_peak_bytes), "allocated, as replayed")
    if plan.techniques:
        grid.add_row("without", format_bytes(plan.plain_peak_bytes), "the same step as it is")
    grid.add_row("budget", format_bytes(plan.budget_bytes), "for PyTorch, without CUDA's context")
    more = sum(each.seconds for each in plan.techniques)
    base = plan.predicted_step_s - more
    note = f"predicted, {more / base:.1%} more than without" if more and base else "predicted"
    grid.add_row("step", format_seconds(plan.predicted_step_s), note)
    return grid


def _techniques(plan: Plan) -> Table:
    grid = Table.grid(Column(style="bold"), _number(), _number(), Column(), padding=(0, 2, 0, 0))
    for each in plan.techniques:
        grid.add_row(
            each.name,
            f"-{format_bytes(each.bytes_saved_at_peak)}",
            f"+{format_seconds(each.seconds)}",
            each.reason,
        )
    return grid


def _front(plan: Plan) -> Table:
    grid = Table.grid(_number(), _number(), padding=(0, 2, 0, 0))
    for point in plan.front:
        grid.add_row(format_bytes(point.peak_bytes), format_seconds(point.step_s))
    return grid
