"""Errors on their way from one process to another, as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide import errors
from ebbtide.errors import EbbtideError, ScriptError


class OutOfVirtualMemoryError(ScriptError):
    """A script ended because the virtual GPU's memory did; it is traced without a limit then."""


def pack(error: EbbtideError) -> dict[str, str]:
    """What `unpack` needs."""
    return {"kind": type(error).__name__, "text": str(error)}


def unpack(packed: Mapping[str, str]) -> EbbtideError:
    """The error again, of the same class; a `ScriptError` where that is none of Ebbtide's."""
    known = {**vars(errors), OutOfVirtualMemoryError.__name__: OutOfVirtualMemoryError}
    kind = known.get(packed["kind"])
    if not (isinstance(kind, type) and issubclass(kind, EbbtideError)):
        kind = ScriptError
    # The text is whole already; the classes' own constructors would make another of it.
    error = kind.__new__(kind)
    Exception.__init__(error, packed["text"])
    return error
