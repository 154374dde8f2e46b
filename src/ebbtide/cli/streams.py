"""Standard streams that are closed, full, or no longer read by anybody."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.errors import UsageError


def open_standard_streams() -> None:
    """Put the null device where a standard stream is closed, as after ``2>&-``.

    Else the next file that is opened takes its number, and what is said goes into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


@contextmanager
def writing() -> Iterator[None]:
    """Around what is written to stdout; where its reader has left (``| head -1``), be silent.

    Raises:
        UsageError: it cannot be written for another reason: the disk is full.
    """
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich makes the second of the first
        _drop_output()
    except OSError as error:
        _drop_output()
        raise UsageError(f"The output cannot be written: {error.strerror}.") from error


def _drop_output() -> None:
    """Let the interpreter's own flush at its end succeed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
