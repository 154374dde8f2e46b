"""The HTML report of one prediction or several: one file that works offline."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ebbtide._version import __version__
from ebbtide.prediction.alive import without_numbers
from ebbtide.prediction.curve import telling
from ebbtide.prediction.figures import memory_curve, speed_curve, timeline_chart
from ebbtide.prediction.parts import Alive, CurvePoint
from ebbtide.prediction.result import Prediction
from ebbtide.report.bars import stacked_bar, swatch
from ebbtide.report.charts import Chart
from ebbtide.report.html import escape, page
from ebbtide.report.tables import Cell, Column, table
from ebbtide.units import format_bytes, format_seconds

MOST_ROWS = 300
"""Rows of the table at the peak; the rest is added up in one row."""


def report(predictions: Sequence[Prediction], title: str) -> str:
    """One self-contained HTML document.

    Args:
        predictions: of one workload, one for each GPU.
        title: what was predicted, as the user named it.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    charts: dict[str, Chart] = {}
    sections = [_section(prediction, charts) for prediction in predictions]
    above = '<p class="soft">Ebbtide: predicted GPU memory</p>'
    assumed = predictions[0].assumed if predictions else ""
    below = f'<p class="soft">{escape(_capital(assumed))}.</p>' if assumed else ""
    head = f"<header>{above}<h1>{escape(title)}</h1>{below}</header>"
    compared = _comparison(predictions) if len(predictions) > 1 else ""
    body = f"{head}\n<main>\n{compared}\n{''.join(sections)}\n</main>\n{_footer(predictions)}"
    return page(f"{title}: predicted GPU memory", body, charts)


def _comparison(predictions: Sequence[Prediction]) -> str:
    columns = [
        Column(title="GPU"),
        Column(title="fits"),
        Column(title="process", numeric=True),
        Column(title="usable", numeric=True),
        Column(title="to spare", numeric=True),
        Column(title="largest batch", numeric=True),
        Column(title="best batch", numeric=True),
        Column(title="samples/s, predicted", numeric=True),
    ]
    rows = []
    for each in predictions:
        link = f'<a class="gpu" href="#{_anchor(each.gpu)}">{escape(each.gpu_label)}</a>'
        rows.append(
            [
                Cell(text=each.gpu_label, html=link),
                _fits_cell(each.fits),
                _bytes_cell(each.process_bytes.likely),
                _bytes_cell(each.usable_bytes),
                _bytes_cell(each.spare_bytes),
                _number_cell(each.largest_batch),
                _number_cell(each.best_batch),
                _number_cell(each.samples_per_s),
            ]
        )
    count = sum(each.fits for each in predictions)
    caption = f"Fits {count} of {len(predictions)} GPUs. Choose one to see what fills its memory."
    return f'<div class="card">{table(caption, columns, rows)}</div>'


def _section(each: Prediction, charts: dict[str, Chart]) -> str:
    verdict = _capital(each.verdict)
    reach = (
        f"{format_bytes(each.process_bytes.low)} to {format_bytes(each.process_bytes.high)} "
        f"of {format_bytes(each.usable_bytes)} usable"
    )
    kind = "fits" if each.fits else "not"
    return "\n".join(
        (
            f'<section class="gpu" id="{_anchor(each.gpu)}" aria-label="{escape(each.gpu_label)}">',
            f'<div class="card verdict {kind}"><p>{escape(verdict)}.</p>'
            f'<p class="soft">The process takes {reach}.</p></div>',
            _figures(each),
            _ledger(each),
            _timeline(each, charts),
            _peak_table(each),
            _curve(each, charts),
            _guesses(each),
            "</section>\n",
        )
    )


def _figures(each: Prediction) -> str:
    process = each.process_bytes
    entries = [
        ("allocated", format_bytes(each.peak_allocated_bytes), "max_memory_allocated()"),
        ("reserved", format_bytes(each.peak_reserved_bytes), "max_memory_reserved()"),
        (
            "process",
            format_bytes(process.likely),
            f"as nvidia-smi shows it; {format_bytes(process.low)} to {format_bytes(process.high)}",
        ),
    ]
    if each.step_s is not None and each.samples_per_s is not None:
        note = f"predicted; {_speed(each.samples_per_s)} samples/s"
        entries.append(("step", format_seconds(each.step_s), note))
    if each.largest_batch is not None:
        note = "" if each.best_batch is None else f"best for speed: {each.best_batch}"
        entries.append(("largest batch", str(each.largest_batch), note))
    items = "".join(
        f'<div><dt>{name}</dt><dd class="big">{escape(value)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for name, value, note in entries
    )
    return f'<dl class="figures">{items}</dl>'


def _ledger(each: Prediction) -> str:
    total = max(each.process_bytes.likely, 1)
    columns = [
        Column(title="part"),
        Column(title="size", numeric=True),
        Column(title="share", numeric=True),
        Column(title="bytes", numeric=True),
    ]
    rows = [
        [
            Cell(text=name, html=swatch(name)),
            _bytes_cell(size),
            Cell(text=f"{100 * size / total:.1f} %", value=size / total),
            Cell(text=f"{size:,}", value=size),
        ]
        for name, size in each.ledger.items()
        if size
    ]
    said = [
        Cell(text="process"),
        _bytes_cell(each.process_bytes.likely),
        Cell(text="100.0 %"),
        Cell(text=f"{each.process_bytes.likely:,}"),
    ]
    bar = stacked_bar(each.ledger, each.usable_bytes, f"Memory of the {each.gpu_label}")
    caption = "Every byte of the process at its peak; the full bar is what the GPU has."
    return (
        f'<h2>What fills the memory</h2><div class="card">{bar}'
        f"{table(caption, columns, [*rows, said], marked=[len(rows)], sortable=False)}</div>"
    )


def _timeline(each: Prediction, charts: dict[str, Chart]) -> str:
    if each.timeline is None:
        return ""
    key = _add(charts, timeline_chart(each, each.timeline))
    return (
        '<h2>Memory over the run</h2><div class="card">'
        '<p class="soft">What is allocated, by part, at each allocation and free; the dotted line '
        "is what the allocator has reserved from the GPU.</p>"
        f'<div class="chart" data-chart="{key}"></div></div>'
    )


def _peak_table(each: Prediction) -> str:
    peak = each.peak
    where = f"Set in <strong>{escape(peak.phase or 'no phase')}</strong> of step {peak.step}"
    if peak.op:
        where += f" by <code>{escape(peak.op)}</code>"
    if peak.module:
        where += f" in <code>{escape(peak.module)}</code>"
    if peak.line:
        where += f" (<code>{escape(peak.line)}</code>)"
    cached = each.ledger["cached/fragmentation"]
    where += f". Reserved and not allocated then: {format_bytes(cached)}"
    if each.largest_hole_bytes is not None:
        where += f"; largest hole {format_bytes(each.largest_hole_bytes)}"
    merged = without_numbers(each.alive)
    shown = _alive_table("What was alive then, as requested; select a heading to sort.", merged)
    if len(merged) < len(each.alive):
        every = _alive_table("The same for each module by itself.", each.alive)
        shown += f"<details><summary>Every module</summary>{every}</details>"
    return f'<h2>The peak</h2><div class="card"><p>{where}.</p>{shown}</div>'


def _alive_table(caption: str, alive: Sequence[Alive]) -> str:
    columns = [
        Column(title="size", numeric=True),
        Column(title="part"),
        Column(title="module"),
        Column(title="operation"),
        Column(title="line"),
        Column(title="tensors", numeric=True),
    ]
    rows = [
        [
            _bytes_cell(row.bytes),
            Cell(text=row.category, html=swatch(row.category)),
            Cell(text=row.module),
            Cell(text=row.op),
            Cell(text=row.line),
            Cell(text=str(row.count), value=row.count),
        ]
        for row in alive[:MOST_ROWS]
    ]
    rest = alive[MOST_ROWS:]
    if rest:
        count = sum(row.count for row in rest)
        said = Cell(text=f"{len(rest)} smaller rows")
        blank = Cell(text="")
        size = _bytes_cell(sum(row.bytes for row in rest))
        rows.append([size, said, blank, blank, blank, Cell(text=str(count), value=count)])
    return table(caption, columns, rows)


def _curve(each: Prediction, charts: dict[str, Chart]) -> str:
    if not each.curve:
        return ""
    keys = [_add(charts, memory_curve(each))]
    speed = speed_curve(each)
    if speed is not None:
        keys.append(_add(charts, speed))
    drawn = "".join(f'<div class="chart" data-chart="{key}"></div>' for key in keys)
    columns = [
        Column(title="batch", numeric=True),
        Column(title="process", numeric=True),
        Column(title="of the GPU", numeric=True),
        Column(title=""),
        Column(title="reserved", numeric=True),
        Column(title="allocated", numeric=True),
        Column(title="step, predicted", numeric=True),
        Column(title="samples/s, predicted", numeric=True),
    ]
    told = telling(each.curve)
    rows = [_curve_row(point, each) for point in told]
    marked = [i for i, point in enumerate(told) if point.batch == each.best_batch]
    hidden = len(each.curve) - len(told)
    more = f" {hidden} larger batches do not fit either." if hidden else ""
    caption = f"By batch size.{more} Times are predicted by a roofline model, not measured."
    shown = table(caption, columns, rows, marked=marked, sortable=False)
    return f'<h2>Batch size</h2><div class="card">{drawn}{shown}</div>'


def _curve_row(point: CurvePoint, each: Prediction) -> list[Cell]:
    share = point.process_bytes.likely / each.usable_bytes
    over = "" if point.fits else " over"
    meter = (
        f'<span class="meter{over}"><span style="width:{min(100 * share, 100):.1f}%"></span></span>'
    )
    tags = []
    if point.batch == each.best_batch:
        tags.append('<span class="tag">best</span>')
    if point.batch == each.largest_batch:
        tags.append('<span class="tag">largest</span>')
    if not point.fits:
        tags.append('<span class="not-text">does not fit</span>')
    step = "" if point.step_s is None else format_seconds(point.step_s)
    return [
        Cell(text=str(point.batch), value=point.batch),
        _bytes_cell(point.process_bytes.likely),
        Cell(text=f"{100 * share:.0f} %", value=share),
        Cell(text="", html=meter + " ".join(tags)),
        _bytes_cell(point.reserved_bytes),
        _bytes_cell(point.allocated_bytes),
        Cell(text=step, value=point.step_s),
        Cell(text="" if point.samples_per_s is None else _speed(point.samples_per_s)),
    ]


def _guesses(each: Prediction) -> str:
    if not each.guesses:
        return "<h2>Guesses</h2><p>None: everything the trace needed was known.</p>"
    items = "".join(
        f"<li>{escape(guess.text)} "
        f'<span class="soft">({escape(guess.kind)}, {guess.count}x)</span></li>'
        for guess in each.guesses
    )
    return f'<h2>Guesses</h2><div class="card"><ul>{items}</ul></div>'


def _footer(predictions: Sequence[Prediction]) -> str:
    versions = ", ".join(sorted({each.torch_version for each in predictions if each.torch_version}))
    torch = f" for torch {escape(versions)}" if versions else ""
    return (
        f"<footer>Predicted by Ebbtide {escape(__version__)}{torch}. Nothing ran on a GPU.</footer>"
    )


def _add(charts: dict[str, Chart], chart: Chart) -> str:
    """The key of `chart`, which is stored once however many GPUs share it."""
    for key, other in charts.items():
        if other == chart:
            return key
    charts[key := f"chart{len(charts)}"] = chart
    return key


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _anchor(gpu: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", gpu.lower())


def _fits_cell(fits: bool) -> Cell:
    word, kind = ("fits", "fits-text") if fits else ("does not fit", "not-text")
    return Cell(text=word, html=f'<span class="{kind}">{word}</span>')


def _bytes_cell(size: int) -> Cell:
    return Cell(text=format_bytes(size), value=size)


def _number_cell(value: float | None) -> Cell:
    if value is None:
        return Cell(text="", value=-1)
    return Cell(text=f"{value}" if isinstance(value, int) else _speed(value), value=value)


def _speed(samples_per_s: float) -> str:
    digits = 0 if samples_per_s >= 100 else 1 if samples_per_s >= 10 else 2
    return f"{samples_per_s:,.{digits}f}"
