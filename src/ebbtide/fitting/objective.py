"""The loss of a batch, from a model and what its user calls a loss function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ebbtide.errors import UsageError
from ebbtide.workloads.entry import loss_of, one_value

Objective = Callable[[Any], Tensor]
"""Takes a batch and returns its loss, a tensor of one value."""

LossFunction = Callable[..., Tensor]

_MODELS = ("model", "net", "network", "module", "m")
_TARGETS = ("target", "targets", "label", "labels", "y", "y_true", "truth")


def objective_of(model: nn.Module, loss_fn: LossFunction | None) -> Objective:
    """How the loss of a batch is computed.

    A loss function is called, by the names of its parameters, as

    * ``loss_fn(model, batch)`` where the first is called ``model`` (or ``net``, ``module``) or
      is annotated as a module: it calls the model itself, as often as it likes;
    * ``loss_fn(output, target)`` where the second is called ``target``, ``labels`` or ``y``,
      as those of ``torch.nn`` are, and the batch is a pair of inputs and targets;
    * ``loss_fn(output, batch)`` otherwise.

    Args:
        model: called with a batch as ``model(**batch)`` for a mapping, ``model(batch[0])`` for
            a pair of which the loss function takes the rest, ``model(*batch)`` for another
            tuple, else ``model(batch)``.
        loss_fn: None where the model returns its loss.

    Raises:
        UsageError: it cannot be called.
    """
    if loss_fn is None:
        return lambda batch: loss_of(_call(model, batch, pair=False))
    given: object = loss_fn
    if not callable(given) or isinstance(given, type):
        raise UsageError(
            "loss_fn: expected a function such as `lambda model, batch: model(**batch).loss` or "
            f"torch.nn.functional.cross_entropy, got {type(loss_fn).__name__}."
        )
    names = _names(loss_fn)
    if names and _is_model(*names[0]):
        return lambda batch: one_value(loss_fn(model, batch))
    if len(names) == 1:
        return lambda batch: one_value(loss_fn(_call(model, batch, pair=False)))
    of_target = len(names) > 1 and names[1][0] in _TARGETS

    def of_output(batch: Any) -> Tensor:
        output = _call(model, batch, pair=True)
        takes = of_target and isinstance(batch, tuple | list) and len(batch) == 2
        return one_value(loss_fn(output, batch[1] if takes else batch))

    return of_output


def _names(loss_fn: LossFunction) -> list[tuple[str, Any]]:
    """Names and annotations of the positional parameters that must be given."""
    function = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        (each.name, each.annotation)
        for each in parameters
        if each.kind in positional and each.default is each.empty
    ]


def _is_model(name: str, annotation: Any) -> bool:
    if annotation is inspect.Parameter.empty:
        return name in _MODELS
    if isinstance(annotation, type):
        return issubclass(annotation, nn.Module)
    return str(annotation).endswith("Module")


def _call(model: nn.Module, batch: Any, *, pair: bool) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(batch[0]) if pair else model(*batch)
    return model(batch)
