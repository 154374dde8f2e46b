"""`ebbtide.predict` and `ebbtide.assert_fits`: prediction from Python."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ebbtide.errors import DoesNotFitError, UsageError
from ebbtide.gpus import Gpu, find
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
    target: str | Model,
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
    are, also after an error. A string is traced in a process of its own.

    Args:
        target: a model, a function that makes one, or what ``ebbtide predict`` takes:
            a script, ``"module:function"``, an architecture.
        batch: for a model, example inputs as it is called with them: a tensor, a tuple
            or a dict; the first dimension is the batch. For a string, the batch size.
        gpu: a name of the catalogue, or a `Gpu`.
        optimizer: makes an optimizer from parameters: ``torch.optim.AdamW``, or a
            `functools.partial` of it. None, without `loss`, means inference. For an
            architecture, its name: ``"adamw"``.
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
    spec = find(gpu) if isinstance(gpu, str) else gpu
    if isinstance(target, str):
        if callable(optimizer) or loss is not None:
            raise UsageError(
                f"{target!r} makes its own optimizer and loss. Name an optimizer as the command "
                "does, such as optimizer='sgd', or pass a model."
            )
        if optimizer is not None:
            options["optimizer"] = optimizer
        chosen = WorkloadOptions(batch=batch, **options)
        request = resolve(target, args=tuple(args), options=chosen, curve=curve)
        question = Question(request=request, gpus=(spec,), batches=tuple(batches))
        return predict_target(question)[0][0]
    if isinstance(optimizer, str):
        raise UsageError(
            f"A model takes a function that makes its optimizer, such as torch.optim.AdamW, "
            f"not {optimizer!r}."
        )
    if options or args:
        unknown = [*options, *(["args"] if args else [])]
        raise UsageError(f"A model takes no {', '.join(unknown)}: set it up as you would train it.")
    if batch is None:
        raise UsageError("A model needs `batch`: example inputs as it is called with them.")
    started = time.perf_counter()
    traces = _trace_model(target, batch, spec, optimizer, loss, curve)
    found = answer(traces, (spec,), batches)[0]
    return replace(found, seconds=time.perf_counter() - started)


def assert_fits(target: str | Model, batch: Any = None, **kwargs: Any) -> Prediction:
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
    from ebbtide.workloads.entry import batch_of
    from ebbtide.workloads.model_run import trace_function

    def build() -> tuple[Any, ...]:
        model = _without_data(target).to("cuda")
        made = optimizer(model.parameters()) if optimizer is not None else None
        return (model, made, batch) if loss is None else (model, made, batch, loss)

    answer = trace_function(build, spec, None, "predict")
    own = batch_of(batch)
    sizes = other_sizes(own) if curve and own else ()
    return Traces(
        answer=answer,
        batches=tuple(trace_function(build, spec, size, "predict") for size in sizes),
    )


def _without_data(target: Model) -> torch.nn.Module:
    """A copy of the model whose tensors are fake; the virtual GPU is on."""
    import torch

    from ebbtide.vgpu.virtual_gpu import VirtualGpu

    if not isinstance(target, torch.nn.Module):
        made = target()
        if not isinstance(made, torch.nn.Module):
            raise UsageError(
                f"The function should return a torch.nn.Module, not {type(made).__name__}."
            )
        return made
    gpu = VirtualGpu.active()
    # `deepcopy` takes what it finds here instead of copying the data.
    memo: dict[int, Any] = {}
    for tensor in target.buffers():
        memo[id(tensor)] = gpu.make_fake(tensor)
    for parameter in target.parameters():
        fake = gpu.make_fake(parameter)
        memo[id(parameter)] = torch.nn.Parameter(fake, requires_grad=parameter.requires_grad)
    return copy.deepcopy(target, memo)
