from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest
from tests.prediction.samples import GUESS, one, three
from tests.report.test_tables import read

from ebbtide.errors import MissingExtraError
from ebbtide.prediction.page import MOST_ROWS, report
from ebbtide.prediction.parts import Alive
from ebbtide.units import format_bytes


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A short stand-in for 4.8 MB that these tests do not run."""
    if request.node.originalname != "test_without_plotly_the_extra_is_named":
        monkeypatch.setattr("ebbtide.report.html.plotly_js", lambda: "/* plotly */")


def test_the_verdict_comes_first() -> None:
    html = report([one()], "train.py")
    verdict = one().verdict[1:]
    assert html.index(verdict) < html.index("max_memory_allocated()") < html.index("<h2>")


def test_the_assumed_settings_stand_in_the_head() -> None:
    made = replace(one(), assumed="training, batch 8; configuration: a <b>")
    html = report([made], "gpt2")
    head = html[html.index("<header>") : html.index("</header>")]
    assert '<p class="soft">Training, batch 8; configuration: a &lt;b&gt;.</p>' in head
    html = report([one()], "train.py")
    assert html[html.index("<h1>") : html.index("</header>")] == "<h1>train.py</h1>"


def test_the_three_figures_are_named() -> None:
    html = report([one()], "train.py")
    for name, size in (
        ("allocated", one().peak_allocated_bytes),
        ("reserved", one().peak_reserved_bytes),
        ("process", one().process_bytes.likely),
    ):
        assert f'<dt>{name}</dt><dd class="big">{format_bytes(size)}</dd>' in html
    assert "as nvidia-smi shows it" in html


def test_the_ledger_is_there_to_the_byte() -> None:
    html = report([one()], "train.py")
    for name, size in one().ledger.items():
        assert (f">{size:,}</td>" in html) == bool(size), name
    assert f"{one().process_bytes.likely:,}" in html


def test_tables_are_well_formed() -> None:
    html = report(three(), "train.py")
    body = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.S)
    main = body[body.index("<main>") : body.index("</main>") + len("</main>")]
    texts = read(main).texts
    assert "aten::_foreach_addcdiv_" in texts
    assert "layers.*" in texts
    assert "layers.23" in texts


def test_names_are_escaped_everywhere() -> None:
    evil = "<img src=x onerror=alert(1)>"
    timeline = one().timeline
    assert timeline is not None
    made = replace(
        one(),
        alive=(Alive(category="other", module=evil, op=evil, line=evil, bytes=5, count=1),),
        peak=replace(one().peak, op=evil, module=evil, line=evil, phase=evil),
        guesses=(replace(GUESS, text=evil, kind=evil),),
        timeline=replace(timeline, ops=(evil,) * len(timeline.event)),
        gpu_label=evil,
    )
    html = report([made, made], evil)
    assert "<img" not in html


def test_times_are_called_predicted() -> None:
    html = report([one()], "train.py")
    assert "step, predicted" in html
    assert "samples/s, predicted" in html
    assert "not measured" in html


def test_use_at_each_batch() -> None:
    html = report([one()], "train.py")
    for point in one().curve:
        share = 100 * point.process_bytes.likely / one().usable_bytes
        assert f">{share:.0f} %</td>" in html
    assert html.count('<span class="tag">best</span>') == 1


def test_several_gpus_are_compared_first_and_linked() -> None:
    html = report(three(), "train.py")
    assert "Fits 2 of 3 GPUs" in html
    for each in three():
        assert f'href="#{each.gpu}"' in html
        assert f'id="{each.gpu}"' in html
    assert html.index("Fits 2 of 3") < html.index('<section class="gpu"')


def test_one_gpu_needs_no_comparison() -> None:
    assert "GPUs. Choose one" not in report([one()], "train.py")


def charts(html: str) -> dict[str, dict[str, object]]:
    found = re.search(r'id="charts">(.*?)</script>', html, re.S)
    assert found
    data: dict[str, dict[str, object]] = json.loads(found[1])
    return data


def test_every_chart_is_there_once() -> None:
    html = report(three(), "train.py")
    places = set(re.findall(r'data-chart="(\w+)"', html))
    assert places == set(charts(html))
    assert len(charts(report([one(), one()], "train.py"))) == 3


def test_guesses_are_listed() -> None:
    assert GUESS.text.replace("'", "&#x27;") in report([one()], "train.py")
    assert "None: everything" in report([replace(one(), guesses=())], "train.py")


def test_the_rest_of_a_long_table_is_added_up() -> None:
    rows = tuple(
        Alive(category="other", module=f"m{i}x", op="", line="", bytes=1024, count=1)
        for i in range(MOST_ROWS + 12)
    )
    html = report([replace(one(), alive=rows)], "train.py")
    assert "12 smaller rows" in html
    assert "12.0 KiB" in html


def test_parts_that_were_not_asked_for_are_left_out() -> None:
    bare = replace(one(), timeline=None, curve=(), largest_hole_bytes=None, step_s=None)
    html = report([bare], "train.py")
    for title in ("Memory over the run", "Batch size"):
        assert title not in html
    assert "largest hole" not in html
    assert "What fills the memory" in html


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError, match=r"ebbtide\[report\]"):
        report([one()], "train.py")
