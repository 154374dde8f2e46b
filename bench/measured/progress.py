"""Progress on stderr: a line that changes where somebody looks, lines that stay in a log."""

from __future__ import annotations

import sys

WIDTH = 76


def show(text: str) -> None:
    """Replace the line by `text`; an empty text clears it."""
    if not sys.stderr.isatty():
        if text:
            print(text, file=sys.stderr, flush=True)
        return
    end = "" if text else "\r"
    print(f"\r{text[:WIDTH]:<{WIDTH}}", end=end, file=sys.stderr, flush=True)
