"""What the TARGET of a command means."""

from __future__ import annotations

from pathlib import Path

from ebbtide.errors import TargetError, UsageError
from ebbtide.workloads.batches import PLACEHOLDER, find_batch
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.request import Request


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
        target: a path ending in ``.py``, ``module:function``, or an architecture.
        args: a script's own arguments.
        options: settings of an architecture.
        curve: whether a second batch size is to be traced.
        seconds: when a script is stopped.

    Raises:
        TargetError: there is nothing of that name.
        UsageError: arguments that the target cannot take.
    """
    options = options if options is not None else WorkloadOptions()
    common = {"gpus": (), "folder": "", "curve": curve, "seconds": seconds, "options": options}
    if target.endswith(".py"):
        return _script(target, args, options, common)
    if args:
        raise UsageError(
            f"{target!r} is no script, so it takes no arguments of its own, but {' '.join(args)!r} "
            "was given. Options of an architecture go before `--`."
        )
    place, colon, name = target.rpartition(":")
    if colon and place and name.isidentifier():
        return Request(kind="function", target=target, batch=options.batch, **common)
    return Request(kind="architecture", target=target, batch=options.batch, **common)


def _script(
    target: str, args: tuple[str, ...], options: WorkloadOptions, common: dict[str, object]
) -> Request:
    path = Path(target)
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = f" Scripts there: {', '.join(near[:6])}." if near else ""
        raise TargetError(f"There is no file {target!r}.{hint}")
    batch = options.batch
    if any(PLACEHOLDER in arg for arg in args):
        if batch is None:
            raise UsageError(f"{PLACEHOLDER} in the script's arguments needs --batch N to start from.")
    else:
        args, found = find_batch(args)
        batch = batch if batch is not None and found is not None else found
    return Request(kind="script", target=target, args=args, batch=batch, **common)  # type: ignore[arg-type]
