from __future__ import annotations

from html.parser import HTMLParser

import pytest

from ebbtide.report.tables import Cell, Column, table


class Structure(HTMLParser):
    """Tags that are open, and the text of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag in ("td", "th"):
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.texts[-1] += data


COLUMNS = [Column(title="module"), Column(title="size", numeric=True)]


def read(html: str) -> Structure:
    structure = Structure()
    structure.feed(html)
    assert structure.open == []
    return structure


def test_well_formed_and_escaped() -> None:
    html = table(
        'caption "<i>"', COLUMNS, [[Cell(text="<script>&"), Cell(text="1 KiB", value=1024)]]
    )
    assert read(html).texts == ["module", "size", "<script>&", "1 KiB"]
    assert "<script>" not in html
    assert "caption &quot;&lt;i&gt;&quot;" in html


def test_numbers_are_sorted_by_their_value() -> None:
    html = table("t", COLUMNS, [[Cell(text="a"), Cell(text="1.00 GiB", value=2**30)]])
    assert 'class="number" data-value="1073741824"' in html
    assert html.count("<button") == 2
    assert 'class="sortable"' in html


def test_a_sum_is_not_sortable() -> None:
    html = table("t", COLUMNS, [[Cell(text="a"), Cell(text="b")]], sortable=False)
    assert "<button" not in html
    assert "sortable" not in html


def test_marked_rows() -> None:
    rows = [[Cell(text="a"), Cell(text="b")], [Cell(text="c"), Cell(text="d")]]
    html = table("t", COLUMNS, rows, marked=[1])
    assert html.count('<tr class="marked">') == 1
    assert html.index("marked") > html.index(">b<")


def test_markup_of_the_caller_stands_as_it_is() -> None:
    html = table("t", COLUMNS, [[Cell(text="x", html="<b>y</b>"), Cell(text="1")]])
    assert "<b>y</b>" in html


def test_a_wide_table_scrolls_by_the_keyboard() -> None:
    html = table("t", COLUMNS, [])
    assert 'class="scroll" role="region" aria-label="t" tabindex="0"' in html
    assert html.count('scope="col"') == 2


def test_a_row_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer"):
        table("t", COLUMNS, [[Cell(text="a")]])
