"""HTML tables: numbers aligned right, sortable by a click or the keyboard, scrolling when wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.report.html import escape


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What a cell shows.

    Attributes:
        text: plain text.
        value: what the column is sorted by; the text where None.
        html: markup to show in place of `text`; the caller has escaped it.
    """

    text: str
    value: float | None = None
    html: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column's heading and whether it holds numbers."""

    title: str
    numeric: bool = False


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    marked: Sequence[int] = (),
    sortable: bool = True,
) -> str:
    """A table as HTML.

    Args:
        caption: plain text above the table.
        columns: one heading a column.
        rows: cells, as many as columns in each row.
        marked: indices of rows to set off from the others.
        sortable: whether headings sort; rows stay where the table is a sum.
    """
    head = "".join(_heading(column, sortable) for column in columns)
    body = "\n".join(_row(row, columns, index in marked) for index, row in enumerate(rows))
    kind = ' class="sortable"' if sortable else ""
    # Not a <caption>: that is as wide as the table, which a narrow screen cuts off.
    label = escape(caption)
    return (
        f'<p class="caption">{label}</p><div class="scroll" role="region" aria-label="{label}" '
        f'tabindex="0"><table{kind} aria-label="{label}">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _heading(column: Column, sortable: bool) -> str:
    kind = ' class="number"' if column.numeric else ""
    title = escape(column.title)
    inner = f'<button type="button">{title}</button>' if sortable else title
    return f'<th scope="col"{kind}>{inner}</th>'


def _row(row: Sequence[Cell], columns: Sequence[Column], marked: bool) -> str:
    cells = []
    for cell, column in zip(row, columns, strict=True):
        kind = ' class="number"' if column.numeric else ""
        value = "" if cell.value is None else f' data-value="{cell.value:.17g}"'
        shown = escape(cell.text) if cell.html is None else cell.html
        cells.append(f"<td{kind}{value}>{shown}</td>")
    kind = ' class="marked"' if marked else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"
