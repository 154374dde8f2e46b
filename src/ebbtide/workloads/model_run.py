"""Trace a model that Ebbtide steps itself: a user's function or an architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ebbtide.errors import UsageError
from ebbtide.gpus import Gpu
from ebbtide.trace.model import Trace
from ebbtide.trace.recorder import Recorder
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.architecture import Architecture
from ebbtide.workloads.architectures import build, find
from ebbtide.workloads.assumed import assumed
from ebbtide.workloads.entry import FunctionWorkload, load_function
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.request import Request
from ebbtide.workloads.torchvision_mend import mend_torchvision
from ebbtide.workloads.tracing import STEPS


def run_model(request: Request, gpu: str, batch: int | None, seq: int | None = None) -> Trace:
    """Build the request's model on a virtual GPU, step it, and return the trace.

    Args:
        request: of kind ``"function"`` or ``"architecture"``.
        gpu: key of the catalogue.
        batch: batch size, None for the target's own.
        seq: tokens a sample, None for the request's.

    Raises:
        TargetError: the target cannot be found or built.
    """
    mend_torchvision()
    if request.kind == "architecture":
        return _trace_architecture(request, gpu, batch, seq)
    return trace_function(
        request.target,
        gpu,
        batch,
        request.target,
        inference=request.options.inference,
        torch_version=request.torch_version,
    )


def trace_function(
    function: Callable[..., Any] | str,
    gpu: str | Gpu,
    batch: int | None,
    name: str,
    *,
    inference: bool = False,
    torch_version: tuple[int, int] | None = None,
) -> Trace:
    """Step what `function` builds on a virtual GPU.

    Args:
        function: as `FunctionWorkload` takes it, or ``"module:function"``, which is then
            imported on the virtual GPU: modules ask at once whether `cuda` is available.
        gpu: where.
        batch: batch size, None for the function's own.
        name: for messages and the trace.
        inference: forward only.
        torch_version: whose rules of kernel choice to follow.
    """
    virtual = VirtualGpu(gpu, torch_version=torch_version)
    with virtual, Recorder(virtual) as recorder:
        made = load_function(function) if isinstance(function, str) else function
        workload = FunctionWorkload(made, batch, name, inference=inference)
        for _ in range(STEPS):
            workload.step()
    return recorder.trace(
        target=name,
        batch=workload.batch,
        steps=recorder.steps,
        forwards=recorder.forwards,
    )


def _trace_architecture(request: Request, gpu: str, batch: int | None, seq: int | None) -> Trace:
    given = request.options
    asked = replace(given, batch=batch or given.batch, seq=seq or given.seq)
    architecture, options = find(request.target, asked)
    virtual = VirtualGpu(gpu, torch_version=request.torch_version)
    with virtual, Recorder(virtual) as recorder, _countable(request.target):
        for kind, note in getattr(architecture, "notes", {}).items():
            virtual.guess(kind, note)
        running = build(architecture, options, "cuda")
        for i in range(STEPS):
            running.step(i)
    return recorder.trace(
        target=request.target,
        batch=running.batch,
        assumed=assumed(architecture, options, running.batch),
        accumulated=1 if options.inference else options.grad_accum,
        steps=recorder.steps,
        forwards=recorder.forwards,
        **_text(architecture, options),
    )


@contextmanager
def _countable(target: str) -> Iterator[None]:
    """Say in our words that a tensor would have more bytes than PyTorch can count.

    Raises:
        UsageError: it would.
    """
    try:
        yield
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise UsageError(
            f"{target} is too large at these sizes: {str(error).splitlines()[0]}"
        ) from error


def _text(architecture: Architecture, options: WorkloadOptions) -> dict[str, int]:
    """Tokens a sample and the most that the model has positions for, if it reads text."""
    reads = getattr(architecture, "reads_text", lambda: False)
    if not reads() or options.kv_tokens is not None:  # else the cache decides, not the prompt
        return {}
    default: int = architecture.default_seq()  # type: ignore[attr-defined]
    config = architecture.config.get_text_config()  # type: ignore[attr-defined]
    stated = getattr(config, "max_position_embeddings", None)
    longest = stated if isinstance(stated, int) and stated > 0 else default
    return {"seq": options.seq or default, "longest_seq": longest}
