"""The page's colours are readable in both themes: contrast by WCAG 2.2, 1.4.3 and 1.4.11."""

from __future__ import annotations

import re

import pytest

from ebbtide.report.html import asset
from ebbtide.report.palette import PARTS

TEXT, GRAPHIC = 4.5, 3.0


def themes() -> dict[str, dict[str, str]]:
    """Colour variables of the light theme, and of the dark one over it."""
    light, dark = re.findall(r":root \{(.*?)\}", asset("report.css"), re.S)
    first = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", light))
    return {"light": first, "dark": {**first, **dict(re.findall(r"(--[\w-]+): (#\w{6});", dark))}}


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_measure_itself() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ("--ink", "--ground"),
        ("--ink", "--card"),
        ("--ink", "--marked"),
        ("--ink", "--good-ground"),
        ("--ink", "--bad-ground"),
        ("--soft", "--ground"),
        ("--soft", "--card"),
        ("--link", "--card"),
        ("--link", "--marked"),
        ("--good", "--good-ground"),
        ("--good", "--card"),
        ("--bad", "--bad-ground"),
        ("--bad", "--card"),
        ("--limit", "--card"),
    ],
)
def test_text_can_be_read(theme: str, text: str, ground: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[text], colours[ground]) >= TEXT


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_part_is_told_from_the_ground(theme: str) -> None:
    card = themes()[theme]["--card"]
    # Each has its name and figure beside it, so a little less will do than WCAG asks.
    faint = {name for name, colour in PARTS.items() if contrast(colour, card) < 2.0}
    assert faint == set()


def test_the_themes_differ() -> None:
    assert themes()["light"]["--card"] != themes()["dark"]["--card"]
