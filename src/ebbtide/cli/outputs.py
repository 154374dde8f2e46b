"""Files that a command writes: found out before the work whether they can be."""

from __future__ import annotations

import os
from pathlib import Path

from ebbtide.errors import UsageError


def check_file(path: Path, force: bool) -> None:
    """Whether `path` can be written.

    Raises:
        UsageError: it is a folder, is in none, exists without `force`, or is read-only.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}.")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already. Use --force to overwrite it.")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: the folder {path.parent} is read-only.")
