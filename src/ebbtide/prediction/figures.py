"""The charts of a prediction: memory over the trace, memory and speed over the batch."""

from __future__ import annotations

from typing import Any

from ebbtide.prediction.curve import telling
from ebbtide.prediction.parts import CurvePoint, Timeline
from ebbtide.prediction.result import Prediction
from ebbtide.report.charts import Chart, PlotTrace, horizontal, line, stacked
from ebbtide.report.html import escape
from ebbtide.report.palette import PARTS, colour
from ebbtide.units import GiB, MiB, format_bytes, format_seconds

_NAMED_SHARE = 0.06  # a phase narrower than this share of the chart has no room for its name
_MOST_BANDS = 60


def timeline_chart(prediction: Prediction, shown: Timeline) -> Chart:
    """Memory by part over the trace's events, with what is reserved and what the GPU leaves."""
    limit = prediction.usable_bytes - prediction.context_bytes.likely
    factor, unit = _unit(max(shown.reserved, default=0))
    traces: list[PlotTrace] = [
        stacked(name, shown.event, [v / factor for v in shown.parts[name]], colour(name), unit=unit)
        for name in PARTS
        if name in shown.parts
    ]
    # Phases and operations are HTML to plotly, and module names are the user's.
    where = [escape(op) for op in shown.ops]
    reserved = [value / factor for value in shown.reserved]
    outline = line("reserved", shown.event, reserved, "var(--ink)", unit=unit, text=where)
    outline["line"] = {"color": "var(--ink)", "width": 1.5, "shape": "hv", "dash": "dot"}
    traces.append(outline)
    layout: dict[str, Any] = {**_phase_bands(shown)}
    if limit < 1.6 * max(shown.reserved, default=0):
        device = horizontal(limit / factor, f"free on the {escape(prediction.gpu_label)}")
        layout["shapes"] += device["shapes"]
        layout["annotations"] += device["annotations"]
    layout["yaxis"] = {"rangemode": "tozero"}
    return Chart(
        label=f"Memory by part over the run. The peak is in {prediction.peak.phase} "
        f"of step {prediction.peak.step}: {format_bytes(prediction.peak_reserved_bytes)} reserved.",
        traces=traces,
        x_title="events, in order",
        y_title=unit,
        layout=layout,
    )


def memory_curve(prediction: Prediction) -> Chart:
    """Process memory against batch size with the GPU's line."""
    points = telling(prediction.curve)
    batches = [point.batch for point in points]
    factor, unit = _unit(max(point.process_bytes.high for point in points))

    def scaled(values: list[int]) -> list[float]:
        return [value / factor for value in values]

    used = [_use_text(point, prediction.usable_bytes) for point in points]
    high = line(
        "process, high",
        batches,
        scaled([p.process_bytes.high for p in points]),
        "#2f6fd0",
        unit=unit,
    )
    low = line(
        "process, low", batches, scaled([p.process_bytes.low for p in points]), "#2f6fd0", unit=unit
    )
    high.update({"line": {"width": 0}, "showlegend": False})
    low.update({"line": {"width": 0}, "fill": "tonexty", "fillcolor": "rgba(47,111,208,0.22)"})
    low["name"] = "process, low to high"
    likely = line(
        "process",
        batches,
        scaled([p.process_bytes.likely for p in points]),
        "#2f6fd0",
        unit=unit,
        text=used,
        mode="lines+markers",
    )
    allocated = line(
        "allocated", batches, scaled([p.allocated_bytes for p in points]), "#d8475f", unit=unit
    )
    allocated["line"]["dash"] = "dot"
    label = f"{prediction.gpu_label}: {format_bytes(prediction.usable_bytes)}"
    layout = {
        **horizontal(prediction.usable_bytes / factor, escape(label)),
        "xaxis": _batch_axis(batches),
        "yaxis": {"rangemode": "tozero"},
    }
    return Chart(
        label=f"Memory against batch size. Largest batch that fits: {prediction.largest_batch}.",
        traces=[high, low, likely, allocated],
        x_title="batch",
        y_title=unit,
        layout=layout,
    )


def speed_curve(prediction: Prediction) -> Chart | None:
    """Predicted samples a second against batch size; None where the trace has no cost."""
    points = [point for point in telling(prediction.curve) if point.samples_per_s is not None]
    if not points:
        return None
    batches = [point.batch for point in points]
    speeds = [point.samples_per_s or 0.0 for point in points]
    said = [
        f"step {format_seconds(point.step_s or 0.0)}{'' if point.fits else ', does not fit'}"
        for point in points
    ]
    curve = line(
        "samples/s (predicted)",
        batches,
        speeds,
        "#4c9f50",
        unit="samples/s",
        text=said,
        mode="lines+markers",
    )
    curve["marker"] = {"symbol": ["circle" if p.fits else "circle-open" for p in points], "size": 8}
    return Chart(
        label=f"Predicted samples a second against batch size; best: {prediction.best_batch}.",
        traces=[curve],
        x_title="batch (hollow: does not fit)",
        y_title="samples/s, predicted",
        layout={
            "xaxis": _batch_axis(batches),
            "yaxis": {"rangemode": "tozero"},
            "showlegend": False,
        },
    )


def _use_text(point: CurvePoint, usable: int) -> str:
    return f"{100 * point.process_bytes.likely / usable:.0f} % of the GPU"


def _batch_axis(batches: list[int]) -> dict[str, Any]:
    # Batches double: on a log axis they stand at even distances. Those between are not named.
    named: list[int] = []
    for batch in batches:
        if not named or batch >= 1.9 * named[-1]:
            named.append(batch)
    return {"type": "log", "tickvals": named, "ticktext": [str(batch) for batch in named]}


def _phase_bands(shown: Timeline) -> dict[str, list[dict[str, Any]]]:
    """Every other phase on a tinted ground, named where there is room."""
    last = shown.event[-1] if shown.event else 0
    starts = [start for start, _, _ in shown.phases]
    shapes, annotations = [], []
    if len(starts) <= _MOST_BANDS:
        for index, (start, name, step) in enumerate(shown.phases):
            end = starts[index + 1] if index + 1 < len(starts) else last
            if index % 2:
                shapes.append(_band(start, end))
            if end - start >= _NAMED_SHARE * max(last, 1):
                annotations.append(_phase_name((start + end) / 2, name, step))
    return {"shapes": shapes, "annotations": annotations}


def _band(start: float, end: float) -> dict[str, Any]:
    return {
        "type": "rect",
        "layer": "below",
        "yref": "paper",
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "line": {"width": 0},
        "fillcolor": "rgba(128,140,160,0.14)",
    }


def _phase_name(middle: float, name: str, step: int) -> dict[str, Any]:
    return {
        "name": "phase",
        "yref": "paper",
        "x": middle,
        "y": 1,
        "yanchor": "bottom",
        "showarrow": False,
        "text": escape(f"{name} {step}" if step else name),
        "font": {"color": "var(--soft)", "size": 11},
    }


def _unit(largest: int) -> tuple[int, str]:
    return (GiB, "GiB") if largest >= GiB else (MiB, "MiB")
