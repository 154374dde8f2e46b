from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.report.bars import stacked_bar, swatch
from ebbtide.report.palette import PARTS, colour


def widths(html: str) -> list[float]:
    return [float(width) for width in re.findall(r"width:([0-9.]+)%", html)]


def test_widths_are_shares_of_the_whole() -> None:
    html = stacked_bar({"parameters": 25, "buffers": 0, "gradients": 50}, 100, "Memory")
    assert widths(html) == [25.0, 50.0]
    assert f"background:{PARTS['gradients']}" in html
    assert 'aria-label="Memory: 75 B of 100 B"' in html


@given(st.lists(st.integers(0, 1 << 40), max_size=13), st.integers(0, 1 << 40))
def test_never_wider_than_the_bar(sizes: list[int], whole: int) -> None:
    html = stacked_bar(dict(zip(PARTS, sizes, strict=False)), whole, "Memory")
    assert sum(widths(html)) <= 100.01


def test_names_are_escaped() -> None:
    html = stacked_bar({"<i>": 5}, 5, '"') + swatch("<i>")
    assert "<i>" not in html


@pytest.mark.parametrize("name", [*PARTS, "unheard of"])
def test_colours_are_steady(name: str) -> None:
    assert re.fullmatch(r"#[0-9a-f]{6}", colour(name))
    assert colour(name) == colour(name)


def test_parts_differ_in_colour() -> None:
    assert len(set(PARTS.values())) == len(PARTS)
