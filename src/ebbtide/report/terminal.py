"""Pieces of terminal output: bars that keep to plain ASCII where the terminal does."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar.

    Args:
        fraction: how much of the width is filled; cut to 0..1.
        colour: a colour that rich understands, such as ``"#2f6fd0"``.
        width: columns; what the layout gives where None.
    """

    fraction: float
    colour: str
    width: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width or options.max_width, options.max_width)
        eighths = round(min(max(self.fraction, 0.0), 1.0) * width * 8)
        if self.fraction > 0:
            eighths = max(eighths, 1)  # what is there is seen
        if options.ascii_only:
            text = "#" * max(round(eighths / 8), int(eighths > 0))
        else:
            text = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        yield Segment(text, Style(color=self.colour))
        yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(self.width or options.max_width, options.max_width)
        return Measurement(min(4, width), width)
