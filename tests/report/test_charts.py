from __future__ import annotations

import json

from ebbtide.report.charts import Chart, horizontal, line, stacked


def test_spec_is_json_with_titles_and_label() -> None:
    chart = Chart(
        label="What is seen.",
        traces=[stacked("parameters", [0, 1], [1.0, 2.0], "#2f6fd0")],
        x_title="events",
        y_title="GiB",
        layout={"yaxis": {"rangemode": "tozero"}, "yaxis2": {"side": "right"}},
    )
    spec = json.loads(json.dumps(chart.spec()))
    assert spec["label"] == "What is seen."
    assert spec["layout"]["xaxis"]["title"] == {"text": "events"}
    assert spec["layout"]["yaxis"]["rangemode"] == "tozero"
    assert spec["layout"]["yaxis"]["title"] == {"text": "GiB"}
    assert spec["layout"]["yaxis2"]["gridcolor"] == "var(--grid)"


def test_stacked_holds_its_value_until_the_next_point() -> None:
    trace = stacked("a", [0, 1], [1.23456, 2.0], "#000000", unit="MiB")
    assert trace["line"]["shape"] == "hv"
    assert trace["stackgroup"] == "stack"
    assert trace["y"] == [1.2346, 2.0]
    assert "MiB" in trace["hovertemplate"]


def test_a_line_shows_its_text_on_hover() -> None:
    plain = line("a", [1], [2], "#000")
    told = line("a", [1], [2], "#000", text=["x"], mode="lines+markers")
    assert "text" not in plain
    assert "%{text}" not in plain["hovertemplate"]
    assert told["text"] == ["x"]
    assert "%{text}" in told["hovertemplate"]
    assert told["mode"] == "lines+markers"


def test_a_devices_line() -> None:
    layout = horizontal(22.5, "L4: 22.50 GiB")
    (shape,), (note,) = layout["shapes"], layout["annotations"]
    assert shape["y0"] == shape["y1"] == note["y"] == 22.5
    assert note["text"] == "L4: 22.50 GiB"
