"""The trace file: a NumPy archive with a JSON header. Reading it executes nothing."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.errors import SnapshotError
from ebbtide.trace.model import VERSION, AllocTable, Guess, OpTable, Phase, Trace

_FORMAT = "ebbtide-trace"
# A trace of a million operations unpacks to about 0.2 GB.
_MOST_BYTES = 4 << 30
# What zipfile, zlib, NumPy and json raise for a file that is damaged or made to trouble them.
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    MemoryError,
    RuntimeError,
    TypeError,
    AttributeError,
    struct.error,
    SyntaxError,
)


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write `trace` to `path`, whole or not at all."""
    header = {
        "format": _FORMAT,
        "version": VERSION,
        "gpu": trace.gpu,
        "torch_version": trace.torch_version,
        "names": trace.names,
        "modules": trace.modules,
        "lines": trace.lines,
        "phases": [asdict(phase) for phase in trace.phases],
        "guesses": [asdict(guess) for guess in trace.guesses],
        "meta": trace.meta,
    }
    arrays: dict[str, Any] = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "event_kind": trace.event_kind,
        "event_arg": trace.event_arg,
        "event_extra": trace.event_extra,
    }
    for prefix, table in (("op", trace.ops), ("alloc", trace.allocs)):
        for column in fields(table):
            arrays[f"{prefix}_{column.name}"] = getattr(table, column.name)
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Raises:
        SnapshotError: the file is missing, truncated, of another kind or a newer version.
    """
    try:
        # Opened here, because NumPy leaves a file open that is no archive.
        with open(path, "rb") as file, zipfile.ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
            if unpacked > _MOST_BYTES:
                raise ValueError(f"it unpacks to {unpacked:,} bytes")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays["header"].tobytes())
    except FileNotFoundError as error:
        raise SnapshotError(f"There is no file {os.fspath(path)!r}.") from error
    except _UNREADABLE as error:
        raise SnapshotError(f"{os.fspath(path)} cannot be read as a trace: {error}") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise SnapshotError(f"{os.fspath(path)} is no trace of Ebbtide.")
    if header.get("version") != VERSION:
        raise SnapshotError(
            f"{os.fspath(path)} is a trace of version {header.get('version')}; this Ebbtide "
            f"reads version {VERSION}. Record it again, or install the matching Ebbtide."
        )
    try:
        return Trace(
            gpu=header["gpu"],
            torch_version=header["torch_version"],
            names=tuple(header["names"]),
            modules=tuple(header["modules"]),
            lines=tuple(header["lines"]),
            phases=tuple(Phase(**phase) for phase in header["phases"]),
            ops=OpTable(**{c.name: arrays[f"op_{c.name}"] for c in fields(OpTable)}),
            allocs=AllocTable(**{c.name: arrays[f"alloc_{c.name}"] for c in fields(AllocTable)}),
            event_kind=arrays["event_kind"],
            event_arg=arrays["event_arg"],
            event_extra=arrays["event_extra"],
            guesses=tuple(Guess(**guess) for guess in header["guesses"]),
            meta=header["meta"],
        )
    except (KeyError, TypeError) as error:
        raise SnapshotError(f"{os.fspath(path)} lacks a part of a trace: {error}") from error
