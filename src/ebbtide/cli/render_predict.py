"""A prediction in the terminal: the verdict first, then what fills the memory, then batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from ebbtide.prediction.alive import without_numbers
from ebbtide.prediction.curve import telling
from ebbtide.prediction.result import Prediction
from ebbtide.report.palette import colour
from ebbtide.report.terminal import Bar
from ebbtide.units import format_bytes, format_seconds

_MOST_DETAILS = 3  # GPUs that are shown one by one; of more, a table says enough
_ALIVE_ROWS = 8
_ROOMY = 76  # columns from which there is room for all of the curve
_WIDE = 100  # columns from which there is room for what is alive at the peak


def render(predictions: Sequence[Prediction], console: Console) -> None:
    """Print predictions of one workload, one for each GPU, to `console`."""
    if len(predictions) > 1:
        console.print(_comparison(predictions, console))
        if len(predictions) > _MOST_DETAILS:
            _assumed(predictions[0], console)
            console.print("\nName fewer GPUs to see what fills the memory of each.")
            return
    for each in predictions:
        if len(predictions) > 1:
            console.print()
            console.rule(Text(each.gpu_label, style="bold"), align="left", style="dim")
        _details(each, console)
        if len({each.guesses for each in predictions}) > 1:
            _guesses(each, console)
    if len({each.guesses for each in predictions}) == 1:
        _guesses(predictions[0], console)


def _details(each: Prediction, console: Console) -> None:
    console.print(_verdict(each, console))
    _assumed(each, console)
    console.print()
    console.print(Padding(_figures(each), (0, 0, 0, 2)))
    console.print()
    console.print(Text(f"What fills the {format_bytes(each.process_bytes.likely)}:"))
    console.print(Padding(_ledger(each), (0, 0, 0, 2)))
    console.print()
    console.print(_peak(each))
    if each.alive and console.width >= _WIDE:
        console.print(Padding(_alive(each), (0, 0, 0, 2)))
    if each.curve:
        console.print()
        console.print(Padding(_curve(each, console), (0, 0, 0, 2)))


def _verdict(each: Prediction, console: Console) -> Text:
    if console.options.ascii_only:
        mark = "OK" if each.fits else "NO"
    else:
        mark = "\N{HEAVY CHECK MARK}" if each.fits else "\N{HEAVY BALLOT X}"
    return Text(f"{mark} {each.verdict}", style="bold green" if each.fits else "bold red")


def _assumed(each: Prediction, console: Console) -> None:
    if each.assumed:
        console.print(Padding(Text(each.assumed, style="dim"), (0, 0, 0, 2), expand=False))


def _number() -> Column:
    """A column that is not cut where others can be: half a figure is none."""
    return Column(justify="right", no_wrap=True)


def _figures(each: Prediction) -> Table:
    grid = Table.grid(Column(), _number(), Column(style="dim"), padding=(0, 2, 0, 0))
    process = each.process_bytes
    between = f"{format_bytes(process.low)} to {format_bytes(process.high)}"
    exact = process.low == process.high
    grid.add_row(
        "allocated", format_bytes(each.peak_allocated_bytes), "torch.cuda.max_memory_allocated()"
    )
    grid.add_row(
        "reserved", format_bytes(each.peak_reserved_bytes), "torch.cuda.max_memory_reserved()"
    )
    grid.add_row(
        Text("process", style="bold"),
        Text(format_bytes(process.likely), style="bold"),
        f"nvidia-smi{'' if exact else f', {between}'}",
    )
    grid.add_row("usable", format_bytes(each.usable_bytes), f"on the {each.gpu_label}")
    if each.step_s is not None and each.samples_per_s is not None:
        note = f"predicted, {_speed(each.samples_per_s)} samples/s at batch {each.batch}"
        grid.add_row("step", format_seconds(each.step_s), note)
    return grid


def _ledger(each: Prediction) -> Table:
    grid = Table.grid(Column(), _number(), _number(), Column(ratio=1), expand=True)
    grid.padding = (0, 2, 0, 0)
    total = max(each.process_bytes.likely, 1)
    largest = max(each.ledger.values(), default=1) or 1
    for name, size in sorted(each.ledger.items(), key=lambda item: -item[1]):
        if size:
            share = f"{100 * size / total:.1f} %"
            bar = Bar(size / largest, colour(name), width=60)
            grid.add_row(name, format_bytes(size), share, bar)
    return grid


def _peak(each: Prediction) -> Text:
    peak = each.peak
    text = Text("Peak", style="bold")
    text.append(f" in {peak.phase or 'no phase'} of step {peak.step}", style="not bold")
    for word, what in (("by", peak.op), ("in", peak.module), ("at", peak.line)):
        if what:
            text.append(f" {word} ", style="not bold").append(what, style="not bold cyan")
    cached = format_bytes(each.ledger["cached/fragmentation"])
    text.append(f"; {cached} reserved but not allocated then", style="not bold")
    if each.largest_hole_bytes is not None:
        text.append(f", largest hole {format_bytes(each.largest_hole_bytes)}", style="not bold")
    return text


def _alive(each: Prediction) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("alive then", justify="right", no_wrap=True)
    table.add_column("part", no_wrap=True)
    table.add_column("module", overflow="fold")
    table.add_column("operation", overflow="fold")
    table.add_column("line", overflow="fold")
    rows = without_numbers(each.alive)
    for row in rows[:_ALIVE_ROWS]:
        count = f"{row.category} ({row.count})" if row.count > 1 else row.category
        cells = (count, row.module, row.op, row.line)
        table.add_row(format_bytes(row.bytes), *(Text(cell) for cell in cells))
    rest = rows[_ALIVE_ROWS:]
    if rest:
        size = format_bytes(sum(row.bytes for row in rest))
        table.add_row(size, Text(f"{len(rest)} smaller rows", style="dim"))
    return table


def _curve(each: Prediction, console: Console) -> Table:
    roomy = console.width >= _ROOMY
    timed = roomy and any(point.step_s is not None for point in each.curve)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("batch", "process", "of GPU"):
        table.add_column(title, justify="right", no_wrap=True)
    if roomy:
        table.add_column("", no_wrap=True)
    if timed:
        table.add_column("step*", justify="right", no_wrap=True)
        table.add_column("samples/s*", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    shown = telling(each.curve)
    for point in shown:
        share = point.process_bytes.likely / each.usable_bytes
        style = "" if point.fits else "red"
        cells: list[str | Bar | Text] = [
            str(point.batch),
            format_bytes(point.process_bytes.likely),
            f"{100 * share:.0f} %",
        ]
        if roomy:
            tint = "green" if point.fits else "red"
            cells.append(Bar(share, tint, width=min(30, console.width // 5)))
        if timed:
            speed = "" if point.samples_per_s is None else _speed(point.samples_per_s)
            cells += ["" if point.step_s is None else format_seconds(point.step_s), speed]
        marks = [
            word
            for word, batch in (("best", each.best_batch), ("largest", each.largest_batch))
            if batch == point.batch
        ]
        cells.append(Text(", ".join(marks) if point.fits else "does not fit", style="bold"))
        table.add_row(*cells, style=style)
    hidden = len(each.curve) - len(shown)
    said = [f"{hidden} larger batches do not fit either"] if hidden else []
    if timed:
        said.append("* predicted from the GPU's rates, not measured")
    if said:
        table.caption = "\n".join(said)
        table.caption_justify = "left"
    return table


def _guesses(each: Prediction, console: Console) -> None:
    if not each.guesses:
        return
    console.print("\nGuesses:", style="bold")
    for guess in each.guesses:
        times = f" ({guess.count}x)" if guess.count > 1 else ""
        console.print(Padding(Text(f"{guess.text}{times}"), (0, 0, 0, 2)))


def _comparison(predictions: Sequence[Prediction], console: Console) -> Table:
    many = len(predictions) > _MOST_DETAILS
    if many:  # the answer to "which does it need?" comes first
        predictions = sorted(predictions, key=lambda each: (not each.fits, each.usable_bytes))
    fitting = sum(each.fits for each in predictions)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.title = f"fits {fitting} of {len(predictions)} GPUs" + (", smallest first" * many)
    table.title_justify = "left"
    table.title_style = "bold"
    table.add_column("GPU", no_wrap=True)
    table.add_column("", no_wrap=True)
    columns = {
        "process": [format_bytes(each.process_bytes.likely) for each in predictions],
        "usable": [format_bytes(each.usable_bytes) for each in predictions],
        "to spare": [format_bytes(each.spare_bytes) for each in predictions],
        "largest": [_known(each.largest_batch, str) for each in predictions],
        "best": [_known(each.best_batch, str) for each in predictions],
        "samples/s*": [_known(each.samples_per_s, _speed) for each in predictions],
    }
    if many and console.width < _WIDE:
        del columns["usable"]
    shown = [title for title, cells in columns.items() if any(cells)]
    for title in shown:
        table.add_column(title, justify="right", no_wrap=True)
    for row, each in enumerate(predictions):
        table.add_row(
            each.gpu_label,
            Text("fits" if each.fits else "no", style="green" if each.fits else "red"),
            *(columns[title][row] for title in shown),
        )
    if len(shown) > 3 or "largest" in shown:
        table.caption = "largest, best: batch size; * predicted from the GPU's rates, not measured"
    table.caption_justify = "left"
    return table


def _known(value: float | None, write: Callable[[Any], str]) -> str:
    return "" if value is None else write(value)


def _speed(samples_per_s: float) -> str:
    digits = 0 if samples_per_s >= 100 else 1 if samples_per_s >= 10 else 2
    return f"{samples_per_s:,.{digits}f}"
