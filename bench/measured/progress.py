"""A line of progress on stderr, where somebody is looking."""

from __future__ import annotations

import sys

WIDTH = 76


def show(text: str) -> None:
    """Replace the line by `text`; an empty text clears it."""
    if sys.stderr.isatty():
        end = "" if text else "\r"
        print(f"\r{text[:WIDTH]:<{WIDTH}}", end=end, file=sys.stderr, flush=True)
