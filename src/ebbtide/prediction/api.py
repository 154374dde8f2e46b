"""`ebbtide.predict` and `ebbtide.assert_fits`: prediction from Python."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ebbtide.errors import DoesNotFitError, UsageError
from ebbtide.gpus import Gpu
from ebbtide.prediction.arguments import (
    check_callable_alone,
    check_model,
    check_named,
    gpu_of,
    sizes_of,
)
from ebbtide.prediction.curve import BATCHES
from ebbtide.prediction.predict import Question, answer, predict_target
from ebbtide.prediction.result import Prediction
from ebbtide.workloads.batches import other_sizes
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.runner import Traces
from ebbtide.workloads.target import resolve

if TYPE_CHECKING:
    import torch

    Model = torch.nn.Module | Callable[[], torch.nn.Module]
    MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def predict(
    target: str | os.PathLike[str] | Model,
    batch: Any = None,
    *,
    gpu: str | Gpu = "a100-80gb",
    optimizer: MakeOptimizer | str | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    curve: bool = True,
    batches: Sequence[int] = BATCHES,
    args: Sequence[str] = (),
    **options: Any,
) -> Prediction:
    """What a workload needs on a GPU, without one.

    A model is traced in this process on the virtual GPU, on a copy without data: the
    model itself, its gradients, the random state and everything in torch stay as they
    are, also after an error. It is traced with gradients on and outside any dispatch mode,
    whatever the caller is in. A string is traced in a process of its own.

    Args:
        target: a model, a function that makes one, or what ``ebbtide predict`` takes:
            a script, ``"module:function"``, an architecture.
        batch: for a model, example inputs as it is called with them: a tensor, a tuple
            or a dict; the first dimension is the batch. For a string, the batch size.
        gpu: a name of the catalogue, or a `Gpu`.
        optimizer: makes an optimizer from parameters: ``torch.optim.AdamW``, or a function
            such as ``lambda p: torch.optim.AdamW(p, lr=1e-3)``. None, without `loss`,
            means inference. For an architecture, its name: ``"adamw"``.
        loss: called with the model's output and the batch. By default the output is the
            loss, or has it as ``.loss``.
        curve: whether to answer for other batch sizes too.
        batches: batch sizes of the curve.
        args: a script's own arguments.
        options: settings of an architecture, see `WorkloadOptions`.

    Raises:
        UnknownGpuError, UsageError: the arguments cannot be understood.
        TargetError: the target cannot be found or built.
        VirtualGpuError: the virtual GPU does not work with the installed torch.
    """
    spec, sizes = gpu_of(gpu), sizes_of(batches)
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if isinstance(target, str):
        if callable(optimizer) or loss is not None:
            raise UsageError(
                f"{target!r} makes its own optimizer and loss. Name an optimizer as the command "
                "does, such as optimizer='sgd', or pass a model."
            )
        check_named(target, batch, args, options)
        if optimizer is not None:
            options["optimizer"] = optimizer
        chosen = WorkloadOptions(batch=batch, **options)
        request = resolve(target, args=tuple(args), options=chosen, curve=curve)
        question = Question(request=request, gpus=(spec,), batches=sizes)
        return predict_target(question)[0][0]
    check_model(target, optimizer, loss)
    if options or args:
        unknown = [*options, *(["args"] if args else [])]
        raise UsageError(f"A model takes no {', '.join(unknown)}: set it up as you would train it.")
    if batch is None or isinstance(batch, int | float):
        raise UsageError("A model needs `batch`: example inputs as it is called with them.")
    started = time.perf_counter()
    make = cast("MakeOptimizer | None", optimizer)
    traces = _trace_model(target, batch, spec, make, loss, curve)
    found = answer(traces, (spec,), sizes)[0]
    return replace(found, seconds=time.perf_counter() - started)


def assert_fits(
    target: str | os.PathLike[str] | Model, batch: Any = None, **kwargs: Any
) -> Prediction:
    """`predict`, and fail if the workload does not fit. For a project's own tests.

    Args:
        target: as `predict` takes it.
        batch: as `predict` takes it.
        kwargs: as `predict` takes them; `curve` is off by default here.

    Returns:
        The prediction, for further assertions on its figures.

    Raises:
        DoesNotFitError: the likely figure is larger than the GPU.
    """
    prediction = predict(target, batch, **{"curve": False, **kwargs})
    if not prediction.fits:
        largest = max(prediction.ledger, key=lambda name: prediction.ledger[name])
        raise DoesNotFitError(
            f"{prediction.verdict}. Largest part: {largest}. Peak in {prediction.peak.phase} "
            f"by {prediction.peak.op} in {prediction.peak.module or 'no module'}."
        )
    return prediction


def _trace_model(
    target: Model,
    batch: Any,
    spec: Gpu,
    optimizer: MakeOptimizer | None,
    loss: Callable[[Any, Any], torch.Tensor] | None,
    curve: bool,
) -> Traces:
    import torch

    from ebbtide.workloads.caller import apart_from_caller
    from ebbtide.workloads.entry import batch_of
    from ebbtide.workloads.model_run import trace_function

    def build() -> tuple[Any, ...]:
        model = _on_gpu(_ready(target, loss))
        made = optimizer(model.parameters()) if optimizer is not None else None
        if optimizer is not None and not hasattr(made, "step"):
            raise UsageError(
                f"optimizer: the function should return an optimizer, not {type(made).__name__}."
            )
        return (model, made, batch) if loss is None else (model, made, batch, loss)

    if not isinstance(target, torch.nn.Module):
        check_callable_alone(target)
    own = batch_of(batch)
    sizes = other_sizes(own) if curve and own else ()
    with apart_from_caller():
        return Traces(
            answer=trace_function(build, spec, None, "predict"),
            batches=tuple(trace_function(build, spec, size, "predict") for size in sizes),
        )


def _on_gpu(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return model.to("cuda")
    except RuntimeError as error:
        if "Cannot swap" not in str(error):
            raise
        # A tensor from outside cannot be made fake in place, and should not be.
        raise UsageError(
            "The function returns a model that was built before it was called. Pass the model "
            "itself, or build it in the function."
        ) from error


def _ready(target: Model, loss: Callable[[Any, Any], torch.Tensor] | None) -> torch.nn.Module:
    """The model to step, not yet on `cuda`; the virtual GPU is on."""
    import torch

    from ebbtide.workloads.given import check_kinds, copy_without_data, eager, note_compiled

    if isinstance(target, torch.nn.Module):
        check_kinds(target)
        note_compiled(target, loss)
        return copy_without_data(eager(target))
    made = target()
    if not isinstance(made, torch.nn.Module):
        raise UsageError(
            f"The function should return a torch.nn.Module, not {type(made).__name__}."
        )
    check_kinds(made)
    note_compiled(made, loss)
    return eager(made)
