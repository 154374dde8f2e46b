"""What `ebbtide.predict` was called with, checked before anything is traced."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from ebbtide.errors import UsageError
from ebbtide.gpus import Gpu, find
from ebbtide.workloads.options import WorkloadOptions


def gpu_of(gpu: object) -> Gpu:
    """The GPU that was meant.

    Raises:
        UnknownGpuError: no GPU has that name.
        UsageError: it is neither a name nor a `Gpu`.
    """
    if isinstance(gpu, Gpu):
        return gpu
    if isinstance(gpu, str):
        return find(gpu)
    raise UsageError(
        f"gpu: expected one name of the catalogue, such as 'l4', or an ebbtide.Gpu, got {gpu!r}. "
        "`ebbtide gpus` lists the names."
    )


def sizes_of(batches: object) -> tuple[int, ...]:
    """Batch sizes of a curve.

    Raises:
        UsageError: there is something else than integers of at least 1.
    """
    rule = "batches: expected batch sizes, integers of at least 1, such as (8, 16, 32)"
    if isinstance(batches, str | bytes) or not isinstance(batches, Iterable):
        raise UsageError(f"{rule}, got {_shown(batches)}.")
    found = []
    for size in batches:
        try:
            number = 0 if isinstance(size, bool) else operator.index(size)
        except TypeError:
            number = 0
        if number < 1:
            raise UsageError(f"{rule}, got {_shown(size)} among them.")
        found.append(number)
    return tuple(found)


def check_named(target: str, batch: object, args: object, options: Mapping[str, object]) -> None:
    """Refuse what goes with a model only, where the target is named by a string.

    Raises:
        UsageError: naming the argument and what is expected there.
    """
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int)):
        raise UsageError(
            f"batch: {target!r} makes its own inputs, so expected the batch size, an integer "
            f"of at least 1, got {_shown(batch)}."
        )
    if isinstance(args, str):
        raise UsageError(f"args: expected a sequence such as ('--lr', '0.1'), got {args!r}.")
    known = {field.name for field in fields(WorkloadOptions)}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UsageError(
            f"There is no option {', '.join(unknown)}. Options are: {', '.join(sorted(known))}."
        )


def check_model(target: object, optimizer: object, loss: object) -> None:
    """Refuse what is neither a model nor makes one, and what makes no optimizer or loss.

    Raises:
        UsageError: naming the argument and what is expected there.
    """
    if not callable(target):  # models are called too
        raise UsageError(
            "target: expected a torch.nn.Module, a function that makes one, or a string that "
            f"names a script, a `module:function` or an architecture, got {_shown(target)}."
        )
    if optimizer is not None and not callable(optimizer):
        name = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
        got = repr(name) if isinstance(optimizer, str) else f"an instance of {name}"
        raise UsageError(
            "optimizer: a model takes what makes its optimizer on the virtual GPU: a class such as "
            "torch.optim.AdamW, or a function of the parameters such as "
            f"`lambda p: torch.optim.AdamW(p, lr=1e-3)`, not {got}."
        )
    if loss is not None and (not callable(loss) or isinstance(loss, type)):
        raise UsageError(
            "loss: expected a function of the model's output and the batch, such as "
            f"`lambda output, batch: output.mean()`, got {_shown(loss)}."
        )


def check_callable_alone(target: Any) -> None:
    """Refuse a function or class that needs arguments: nobody would give them.

    Raises:
        UsageError: with its name and what is missing.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # written in C: its own call will tell
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(target, "__name__", type(target).__name__)
        kind = "class" if isinstance(target, type) else "function"
        example = name if name.isidentifier() else "build"
        raise UsageError(
            f"target: the {kind} {name} cannot be called without arguments ({error}). Pass a "
            f"model, or a function that makes one, such as `lambda: {example}(...)`."
        ) from None


def _shown(value: object) -> str:
    """A short value as it is written; of others the type: a tensor would fill the screen."""
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"
