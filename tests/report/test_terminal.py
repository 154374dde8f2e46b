from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from ebbtide.report.terminal import Bar


def drawn(bar: Bar, width: int = 40, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="") as file:
        Console(file=file, width=width, color_system=None).print(bar, end="")
        file.flush()
        return raw.getvalue().decode(encoding).rstrip("\n")


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, ""),
        (0.5, "█" * 5),
        (1, "█" * 10),
        (2, "█" * 10),
        (-1, ""),
        (0.0001, "▏"),
        (0.55, "█████▌"),
    ],
)
def test_length(fraction: float, text: str) -> None:
    assert drawn(Bar(fraction, "#2f6fd0", width=10)) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, ""), (0.5, "#####"), (0.001, "#"), (1, "#" * 10)]
)
def test_plain_ascii_where_the_terminal_knows_no_more(fraction: float, text: str) -> None:
    assert drawn(Bar(fraction, "red", width=10), encoding="ascii") == text


@given(st.floats(-1, 3), st.integers(4, 200))
def test_never_wider_than_its_place(fraction: float, width: int) -> None:
    assert len(drawn(Bar(fraction, "red"), width=width)) <= width


def test_fits_into_a_table() -> None:
    grid = Table.grid(expand=True)
    grid.add_column()
    grid.add_column(ratio=1)
    grid.add_row("name", Bar(1.0, "red"))
    file = io.StringIO()
    Console(file=file, width=20, color_system=None).print(grid)
    assert file.getvalue().rstrip() == "name" + "█" * 16
