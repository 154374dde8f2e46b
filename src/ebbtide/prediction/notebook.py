"""A prediction in a notebook: the verdict, the figures and the ledger as a small HTML fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.report.html import escape
from ebbtide.report.palette import colour
from ebbtide.units import format_bytes

if TYPE_CHECKING:
    from ebbtide.prediction.result import Prediction


_SWATCH = "display:inline-block;width:0.8em;height:0.8em"


def fragment(prediction: Prediction) -> str:
    """HTML that needs no style sheet and no script, as notebooks strip both."""
    total = max(sum(prediction.ledger.values()), 1)
    rows = "".join(
        f'<tr><td style="text-align:left"><span style="{_SWATCH};'
        f'background:{colour(name)}"></span> {escape(name)}</td>'
        f'<td style="text-align:right">{format_bytes(size)}</td>'
        f'<td style="text-align:right">{100 * size / total:.1f} %</td></tr>'
        for name, size in prediction.ledger.items()
        if size > 0
    )
    lines = str(prediction).splitlines()
    mark = "\N{HEAVY CHECK MARK}" if prediction.fits else "\N{HEAVY BALLOT X}"
    return (
        f"<div><p><strong>{mark} {escape(lines[0])}</strong><br>{escape(' '.join(lines[1:]))}</p>"
        f"<table><thead><tr><th>at the peak</th><th>bytes</th><th>share</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )
