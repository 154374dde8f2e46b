from __future__ import annotations

import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import MissingExtraError
from ebbtide.report.charts import Chart, line
from ebbtide.report.html import asset, escape, json_in_html, page
from ebbtide.report.plotlyjs import plotly_js


def chart() -> Chart:
    return Chart(
        label="A line.",
        traces=[line("</script>", [1, 2], [3, 4], "#000")],
        x_title="x",
        y_title="y",
    )


@given(st.text())
def test_escape_leaves_no_markup(text: str) -> None:
    assert not set(escape(text)) & set("<>\"'")


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner)))
def test_json_cannot_end_its_script(value: object) -> None:
    text = json_in_html(value)
    assert "<" not in text
    assert json.loads(text) == value


def test_json_refuses_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_in_html([float("nan")])


def test_a_page_fetches_nothing() -> None:
    made = page("T", "<p>x</p>", {"chart0": chart()})
    ours = made.replace(plotly_js(), "")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", ours)
    assert "@import" not in ours
    assert "url(" not in ours
    assert ours.count("</script>") == 3


def test_the_title_is_escaped() -> None:
    made = page("<b>&", "", {})
    assert "<title>&lt;b&gt;&amp;</title>" in made


def test_a_page_without_charts_needs_no_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert "Plotly" not in page("T", "<p>x</p>", {}).replace(asset("report.js"), "")


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ebbtide\[report\]'") as caught:
        page("T", "", {"chart0": chart()})
    assert caught.value.exit_code == 2


def test_the_page_says_both_themes_and_a_phones_width() -> None:
    made = page("T", "", {})
    assert 'name="viewport" content="width=device-width' in made
    assert "prefers-color-scheme: dark" in made
    assert '<html lang="en">' in made
