"""What the TARGET of a command means."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ebbtide.errors import TargetError, UsageError
from ebbtide.workloads.batches import PLACEHOLDER, find_batch
from ebbtide.workloads.checkpoint import find_weights
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.request import Request

TRACE_SUFFIX = ".trace"
# What options say that a target sets for itself in its own code.
_OF_SCRIPTS = ("batch",)
_OF_FUNCTIONS = ("batch", "inference")
_FILES = (".json", ".safetensors")


def resolve(
    target: str,
    *,
    args: tuple[str, ...] = (),
    options: WorkloadOptions | None = None,
    curve: bool = True,
    seconds: float = 600.0,
) -> Request:
    """The request that TARGET stands for; its GPUs are still to be named.

    Args:
        target: a path ending in ``.py``, a saved trace, ``module:function``, or an
            architecture.
        args: a script's own arguments.
        options: settings of an architecture.
        curve: whether other batch sizes are to be traced.
        seconds: when a script is stopped.

    Raises:
        TargetError: there is nothing of that name.
        UsageError: arguments or options that the target cannot take.
    """
    options = options if options is not None else WorkloadOptions()
    if not seconds > 0:
        raise UsageError(f"--seconds: expected a time above zero, got {seconds:g}")
    if not target:
        raise TargetError("The target is empty. Name a script, a model or a checkpoint.")
    common: dict[str, Any] = {"curve": curve, "seconds": seconds, "options": options}
    if target.endswith(".py"):
        return _script(target, args, options, common)
    if args:
        raise UsageError(
            f"{target!r} is no script, so it takes no arguments of its own, but {' '.join(args)!r} "
            "was given. Options of an architecture go before `--`."
        )
    if target.endswith(TRACE_SUFFIX):
        _only((), options, f"{target} is a saved trace, which is as it is")
        return Request(kind="trace", target=target, **common)
    place, colon, name = target.rpartition(":")
    if colon and place and name.isidentifier():
        _only(_OF_FUNCTIONS, options, f"{target} builds its model itself")
        return Request(kind="function", target=target, batch=options.batch, **common)
    path = Path(target)
    if path.is_file() and path.suffix not in _FILES:
        raise TargetError(
            f"{target!r} is a file of an unknown kind. Expected a script (.py), a saved trace "
            f"({TRACE_SUFFIX}), a config.json or a .safetensors file."
        )
    common["options"] = _implied(path, options)
    return Request(kind="architecture", target=target, batch=options.batch, **common)


def _implied(path: Path, options: WorkloadOptions) -> WorkloadOptions:
    """With inference where a cache is asked for, or weights and nothing of training."""
    stored = find_weights(path) and not options.of_training()
    if stored or options.kv_tokens is not None:
        options = replace(options, inference=True)
    options.check_trainable()
    return options


def _script(
    target: str, args: tuple[str, ...], options: WorkloadOptions, common: dict[str, Any]
) -> Request:
    path = Path(target)
    if path.is_dir():
        raise TargetError(f"{target!r} is a folder. Name a script in it.")
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = f" Scripts there: {', '.join(near[:6])}." if near else ""
        raise TargetError(f"There is no file {target!r}.{hint}")
    _only(_OF_SCRIPTS, options, f"{target} sets it itself; its own arguments go after `--`")
    batch = options.batch
    if not any(PLACEHOLDER in arg for arg in args):
        args, found = find_batch(args)
        batch = batch if batch is not None else found
    elif batch is None:
        raise UsageError(f"{PLACEHOLDER} in the script's arguments needs --batch N to start from.")
    return Request(kind="script", target=target, args=args, batch=batch, **common)


def _only(allowed: tuple[str, ...], options: WorkloadOptions, why: str) -> None:
    """Refuse an option that would be passed over."""
    default = WorkloadOptions()
    for field in fields(options):
        name = field.name
        if name not in allowed and getattr(options, name) != getattr(default, name):
            raise UsageError(f"--{name.replace('_', '-')} does nothing here: {why}.")
