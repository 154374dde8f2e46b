"""Exceptions raised by Ebbtide.

    EbbtideError
    ├── UsageError            what the user asked for cannot be understood (exit code 2)
    │   ├── UnknownGpuError       no GPU of that name in the catalogue
    │   ├── TargetError           the thing to predict cannot be found, read or built
    │   ├── SnapshotError         a file is no snapshot or trace that can be read
    │   └── MissingExtraError     an optional dependency is not installed
    ├── ScriptError           the user's own program failed while it was recorded (exit code 2)
    ├── VirtualGpuError       the virtual GPU cannot work on this machine or torch version
    │                         (exit code 2: nothing is known about fitting)
    ├── PlanError             a plan cannot be carried out: another model (exit code 1)
    └── DoesNotFitError       raised by `assert_fits` and `fit` (exit code 1)

Every message says what happened, with the numbers, and what to do next.
"""

from __future__ import annotations


class EbbtideError(Exception):
    """The base of everything Ebbtide raises on purpose."""

    exit_code = 1


class UsageError(EbbtideError):
    """What was asked for cannot be understood or is out of range."""

    exit_code = 2


class UnknownGpuError(UsageError):
    """No GPU of that name is in the catalogue; the message offers the nearest names."""


class TargetError(UsageError):
    """The workload named on the command line cannot be found, read or built."""


class SnapshotError(UsageError):
    """A file is not a memory snapshot or trace that can be read: truncated, hostile or foreign."""


class MissingExtraError(UsageError):
    """An optional dependency is missing.

    Args:
        what: the feature that needs it, as the user would name it.
        package: the import name of the missing package.
        extra: the extra of Ebbtide that brings it.
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'ebbtide[{extra}]'"
        )


class ScriptError(EbbtideError):
    """The user's own program raised while it was being recorded."""

    exit_code = 2


class VirtualGpuError(EbbtideError):
    """The virtual GPU cannot work here; the message names the torch versions that do."""

    exit_code = 2


class PlanError(EbbtideError):
    """A plan cannot be carried out, because it was made for something else."""


class DoesNotFitError(EbbtideError, AssertionError):
    """A workload needs more memory than there is. Raised by `assert_fits` and `fit`."""
