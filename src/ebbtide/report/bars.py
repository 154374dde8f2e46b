"""A stacked horizontal bar in plain HTML: parts of a whole, no script needed."""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide.report.html import escape
from ebbtide.report.palette import colour
from ebbtide.units import format_bytes


def stacked_bar(parts: Mapping[str, int], whole_bytes: int, what: str) -> str:
    """A bar as long as `whole_bytes`, with one stretch for each of `parts` in bytes.

    Args:
        parts: name to bytes; those of zero bytes are left out.
        whole_bytes: what the full width stands for; the parts' sum where it is more.
        what: what the bar shows, for readers who cannot see it.
    """
    total = sum(parts.values())
    whole = max(whole_bytes, total, 1)
    stretches = "".join(
        f'<span style="width:{100 * size / whole:.4f}%;background:{colour(name)}" '
        f'title="{escape(name)}: {format_bytes(size)}"></span>'
        for name, size in parts.items()
        if size > 0
    )
    said = f"{what}: {format_bytes(total)} of {format_bytes(whole)}"
    return f'<div class="stack" role="img" aria-label="{escape(said)}">{stretches}</div>'


def swatch(name: str) -> str:
    """A small square in the colour of the part called `name`, and the name."""
    square = f'<span class="swatch" style="background:{colour(name)}"></span>'
    return f'<span class="name">{square}{escape(name)}</span>'
