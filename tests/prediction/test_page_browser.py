"""The report in a headless browser: nothing is fetched, all is drawn, tables sort."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prediction.samples import three

from ebbtide.prediction.page import report

pytestmark = pytest.mark.pictures


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report(three(), "train.py --model <gpt>"), encoding="utf-8")
    return path.as_uri()


class Opened:
    """A page, and what went wrong in it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.troubles: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.troubles.append(message.text))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        page.wait_for_selector(".chart .main-svg")


@pytest.fixture(scope="module")
def shared(browser: Any, address: str) -> Iterator[Opened]:
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
    yield Opened(page, address)
    page.close()


@pytest.fixture
def wide(shared: Opened) -> Opened:
    """A page that all tests share, as loading plotly.js takes its time; on its first GPU."""
    shared.page.evaluate("location.hash = '#t4'")
    shared.page.wait_for_selector("#t4 .main-svg")
    return shared


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 375), ("dark", 375)]
)
def test_works_offline_in_each_theme_and_width(
    browser: Any, address: str, scheme: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = Opened(page, address)
    assert opened.troubles == []
    assert opened.requests == [address]
    # Nothing sticks out sideways.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_only_the_chosen_gpu_is_shown_and_drawn(wide: Opened) -> None:
    def drawn() -> dict[str, int]:
        found: dict[str, int] = wide.page.evaluate(
            """Object.fromEntries([...document.querySelectorAll("section.gpu:not([hidden])")]
               .map((s) => [s.id, s.querySelectorAll(".main-svg").length > 0 ? 1 : 0]))"""
        )
        return found

    assert drawn() == {"t4": 1}
    wide.page.click("a.gpu[href='#a100-40gb']")
    wide.page.wait_for_selector("#a100-40gb .main-svg")
    assert drawn() == {"a100-40gb": 1}
    row = wide.page.locator("tr[aria-current='true']")
    assert "A100 40 GB" in row.inner_text()
    assert wide.troubles == []


def test_charts_speak_to_those_who_cannot_see_them(wide: Opened) -> None:
    labels = wide.page.eval_on_selector_all(
        "section.gpu:not([hidden]) .chart", "each => each.map((c) => c.getAttribute('aria-label'))"
    )
    assert len(labels) == 3
    assert labels[0].startswith("Memory by part over the run.")


def test_a_heading_sorts_by_value_both_ways(wide: Opened) -> None:
    section = wide.page.locator("section.gpu:not([hidden])")
    table = section.locator("table.sortable").first
    heading = table.locator("th", has_text="size")

    def sizes() -> list[float]:
        found: list[float] = table.evaluate(
            "t => [...t.tBodies[0].rows].map((row) => Number(row.cells[0].dataset.value))"
        )
        return found

    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert sizes() == sorted(sizes(), reverse=True)
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert sizes() == sorted(sizes())
    parts = table.locator("th", has_text="part")
    parts.locator("button").click()
    assert heading.get_attribute("aria-sort") is None
    names = table.evaluate("t => [...t.tBodies[0].rows].map((row) => row.cells[1].textContent)")
    assert names == sorted(names)


def test_hovering_the_timeline_names_the_operation(wide: Opened) -> None:
    place = wide.page.locator("section.gpu:not([hidden]) .chart").first
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    wide.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
    wide.page.wait_for_selector(".hoverlayer text", state="attached")
    said = place.locator(".hoverlayer").text_content()
    assert "parameters" in said
    assert "GiB" in said
    assert "aten::" in said


def test_the_theme_may_change_while_it_is_read(wide: Opened) -> None:
    def ink() -> str:
        found: str = wide.page.evaluate(
            """getComputedStyle(document.querySelector(
               "section.gpu:not([hidden]) .chart .xtick text")).fill"""
        )
        return found

    light = ink()
    wide.page.emulate_media(color_scheme="dark")
    wide.page.wait_for_timeout(300)
    assert ink() != light
    wide.page.emulate_media(color_scheme="light")


def test_it_says_everything_without_scripts(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    text = page.inner_text("main")
    for each in three():
        assert each.verdict[1:] in text
    assert page.locator("section.gpu").count() == 3
    context.close()
