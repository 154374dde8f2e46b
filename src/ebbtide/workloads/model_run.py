"""Trace a model that Ebbtide steps itself: a user's function or an architecture."""

from __future__ import annotations

from ebbtide.trace.model import Trace
from ebbtide.trace.recorder import Recorder
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.entry import FunctionWorkload, load_function
from ebbtide.workloads.request import Request
from ebbtide.workloads.stopping import STEPS
from ebbtide.workloads.torchvision_mend import mend_torchvision


def run_model(request: Request, gpu: str, batch: int | None) -> Trace:
    """Build the request's model on a virtual GPU, step it, and return the trace.

    Args:
        request: of kind ``"function"`` or ``"architecture"``.
        gpu: key of the catalogue.
        batch: batch size, None for the target's own.

    Raises:
        TargetError: the target cannot be found or built.
    """
    mend_torchvision()
    function = load_function(request.target)
    virtual = VirtualGpu(gpu, torch_version=request.torch_version)
    with virtual, Recorder(virtual) as recorder:
        workload = FunctionWorkload(
            function, batch, request.target, inference=request.options.inference
        )
        for _ in range(STEPS):
            workload.step()
    return recorder.trace(
        target=request.target,
        batch=workload.batch,
        steps=recorder.steps,
        forwards=recorder.forwards,
    )
