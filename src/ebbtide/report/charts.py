"""What a chart shows, as data for plotly.js; no package is needed to make one.

Colours may be a CSS variable of the page (``"var(--ink)"``): the page's script puts
in the value of the reader's theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PlotTrace = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One figure.

    Attributes:
        label: one sentence on what is to be seen, for readers who cannot see it.
        traces: plotly traces.
        x_title, y_title: what the axes count, with the unit.
        layout: plotly layout that is added to the usual one.
    """

    label: str
    traces: Sequence[PlotTrace]
    x_title: str
    y_title: str
    layout: Mapping[str, Any] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        """The ``{"label", "data", "layout"}`` that the page's script draws."""
        axes = {
            "xaxis": {"title": {"text": self.x_title}},
            "yaxis": {"title": {"text": self.y_title}},
        }
        layout: dict[str, Any] = {**_LAYOUT, **self.layout}
        for axis, entries in axes.items():
            layout[axis] = {**_AXIS, **entries, **dict(self.layout.get(axis, {}))}
        for extra in (key for key in self.layout if key.startswith("yaxis") and key != "yaxis"):
            layout[extra] = {**_AXIS, **dict(self.layout[extra])}
        return {"label": self.label, "data": list(self.traces), "layout": layout}


def stacked(
    name: str, x: Sequence[float], y: Sequence[float], colour: str, *, unit: str = "GiB"
) -> PlotTrace:
    """One layer of a stacked area whose value holds until the next point."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [round(value, 4) for value in y],
        "stackgroup": "stack",
        "line": {"width": 0.5, "color": colour, "shape": "hv"},
        "fillcolor": colour,
        "hovertemplate": "%{y:.2f} " + unit,
    }


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    colour: str,
    *,
    unit: str = "GiB",
    text: Sequence[str] = (),
    **style: Any,
) -> PlotTrace:
    """A line, with markers where `style` says so; `text` is added to each point's hover."""
    trace: PlotTrace = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [round(value, 4) for value in y],
        "line": {"color": colour, "width": 2},
        "hovertemplate": "%{y:.2f} " + unit + ("<br>%{text}" if text else ""),
        **style,
    }
    if text:
        trace["text"] = list(text)
    return trace


def horizontal(y: float, label: str) -> dict[str, Any]:
    """Layout entries for a dashed line across the whole chart at `y`, labelled above it."""
    return {
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": round(y, 4),
                "y1": round(y, 4),
                "line": {"color": "var(--limit)", "width": 2, "dash": "dash"},
            }
        ],
        "annotations": [
            {
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "xshift": 6,
                "y": round(y, 4),
                "yanchor": "bottom",
                "text": label,
                "showarrow": False,
                "font": {"color": "var(--limit)"},
            }
        ],
    }


_AXIS: dict[str, Any] = {
    "gridcolor": "var(--grid)",
    "linecolor": "var(--grid)",
    "zeroline": False,
    "automargin": True,
}
_LAYOUT: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "var(--ink)", "family": "var(--font)", "size": 12},
    "hoverlabel": {"bgcolor": "var(--card)", "font": {"color": "var(--ink)"}},
    "hovermode": "x unified",
    "margin": {"l": 56, "r": 12, "t": 8, "b": 48},
    "legend": {"orientation": "h", "x": 0, "y": 1.08, "yanchor": "bottom", "traceorder": "normal"},
}
