from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.prediction.samples import one, three

from ebbtide.prediction.figures import memory_curve, speed_curve, timeline_chart
from ebbtide.prediction.parts import Timeline
from ebbtide.report.html import escape
from ebbtide.units import GiB


def shown() -> Timeline:
    timeline = one().timeline
    assert timeline is not None
    return timeline


def test_timeline_stacks_every_part_to_what_is_allocated() -> None:
    chart = timeline_chart(one(), shown())
    *layers, reserved = chart.traces
    top = max(sum(layer["y"][i] for layer in layers) for i in range(len(shown().event)))
    assert top == pytest.approx(one().peak_allocated_bytes / GiB, abs=0.01)
    assert max(reserved["y"]) == pytest.approx(one().peak_reserved_bytes / GiB, abs=0.001)
    assert {layer["name"] for layer in layers} == set(shown().parts)
    json.dumps(chart.spec())


def test_phases_are_named() -> None:
    names = [note["text"] for note in timeline_chart(one(), shown()).layout["annotations"]]
    assert "backward 2" in names


def test_many_phases_are_not_drawn() -> None:
    crowded = replace(shown(), phases=tuple((i, "inference", i) for i in range(100)))
    chart = timeline_chart(one(), crowded)
    assert all(shape["type"] == "line" for shape in chart.layout["shapes"])


def test_the_gpus_line_is_left_out_where_it_is_far_above() -> None:
    near = timeline_chart(one(), shown()).layout
    far = timeline_chart(three()[2], shown()).layout
    assert any("free on the L4" in note["text"] for note in near["annotations"])
    assert not any("free on" in note["text"] for note in far["annotations"])


def test_names_of_modules_are_no_markup_for_plotly() -> None:
    hostile = replace(shown(), ops=("aten::mm in <img src=x onerror=y>",) * len(shown().event))
    reserved = timeline_chart(one(), hostile).traces[-1]
    assert reserved["text"][0] == escape("aten::mm in <img src=x onerror=y>")


def test_memory_against_batch_size() -> None:
    chart = memory_curve(one())
    high, low, likely, allocated = chart.traces
    assert likely["x"] == [point.batch for point in one().curve]
    for index, point in enumerate(one().curve):
        assert likely["y"][index] == pytest.approx(point.process_bytes.likely / GiB, abs=1e-3)
        assert low["y"][index] <= likely["y"][index] <= high["y"][index]
        assert allocated["y"][index] < likely["y"][index]
    (shape,) = chart.layout["shapes"]
    assert shape["y0"] == pytest.approx(one().usable_bytes / GiB, abs=1e-3)
    assert likely["text"][0].endswith("% of the GPU")


def test_batches_between_are_not_named() -> None:
    axis = memory_curve(one()).layout["xaxis"]
    assert axis["tickvals"] == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_speed_against_batch_size() -> None:
    chart = speed_curve(three()[0])
    assert chart is not None
    assert "predicted" in chart.y_title
    assert set(chart.traces[0]["marker"]["symbol"]) == {"circle-open"}
    fitting = speed_curve(three()[2])
    assert fitting is not None
    assert "circle" in fitting.traces[0]["marker"]["symbol"]


def test_no_speed_without_time() -> None:
    untimed = tuple(replace(p, step_s=None, samples_per_s=None) for p in one().curve)
    assert speed_curve(replace(one(), curve=untimed)) is None


def test_small_models_are_shown_in_mib() -> None:
    small = replace(
        shown(),
        parts={"parameters": (1 << 20,) * len(shown().event)},
        reserved=(2 << 20,) * len(shown().event),
    )
    assert timeline_chart(one(), small).y_title == "MiB"
