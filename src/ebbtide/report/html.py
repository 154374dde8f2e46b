"""One self-contained HTML page: it fetches nothing, so it works offline and in an e-mail.

The page follows the reader's light or dark setting, is readable at the width of a
phone, and says all it has to say without JavaScript; scripts only add the charts,
the sorting of tables and the choice of a section.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape as _escape
from importlib.resources import files

from ebbtide.report.charts import Chart
from ebbtide.report.plotlyjs import plotly_js


def escape(text: object) -> str:
    """`text` with everything that HTML would take for markup or a quote made harmless."""
    return _escape(str(text), quote=True)


def page(title: str, body: str, charts: Mapping[str, Chart]) -> str:
    """A whole document.

    Args:
        title: plain text.
        body: HTML, whose ``<div class="chart" data-chart="KEY">`` places show ``charts[KEY]``.
        charts: what to draw, by key; a chart that stands in several places is stored once.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    library = f"<script>{plotly_js()}</script>" if charts else ""
    return _DOCUMENT.format(
        title=escape(title),
        css=asset("report.css"),
        body=body,
        charts=json_in_html({key: chart.spec() for key, chart in charts.items()}),
        library=library,
        script=asset("report.js"),
    )


def asset(name: str) -> str:
    """The text of the file `name` that comes with this package."""
    return files("ebbtide.report").joinpath("assets", name).read_text(encoding="utf-8")


def json_in_html(value: object) -> str:
    """`value` as JSON that cannot end the ``<script>`` element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


_DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
{body}
<script type="application/json" id="charts">{charts}</script>
{library}
<script>
{script}</script>
</body>
</html>
"""
