"""A workload on a virtual GPU: nothing is computed, every byte is counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ebbtide.fitting.subject import Replay
from ebbtide.gpus import Gpu, context_bytes
from ebbtide.plan.decision import Decision
from ebbtide.plan.graph import StepGraph
from ebbtide.train.carry_out import carried_out
from ebbtide.train.survey import Survey
from ebbtide.vgpu.allocator import AllocatorConfig
from ebbtide.vgpu.virtual_gpu import VirtualGpu, torch_release

# The first makes the optimizer's state.
_STEPS = 2

Step = Callable[[], Any]


class VirtualSubject:
    """Steps of what `build` makes on a virtual GPU that is on.

    Args:
        build: returns a function that takes one step.
        gpu: where.
    """

    gaps = True

    def __init__(self, build: Callable[[], Step], gpu: Gpu) -> None:
        self._build, self._gpu = build, gpu

    def survey(self) -> StepGraph:
        """The second step: the first makes the optimizer's state."""
        with VirtualGpu(self._gpu) as gpu:
            step = self._build()
            step()
            survey = Survey(gpu)
            with survey.saved:
                step()
            return survey.graph()

    def replay(self, decision: Decision, limit_bytes: int) -> Replay:
        """Two steps on a GPU that has `limit_bytes` for PyTorch."""
        with limited(self._gpu, decision, limit_bytes) as gpu:
            try:
                step = self._build()
                with carried_out(decision):
                    for _ in range(_STEPS):
                        step()
            except torch.OutOfMemoryError:
                return Replay(gpu.memory.max_memory_allocated(), fits=False)
            return Replay(gpu.memory.max_memory_allocated(), fits=True)


def limited(gpu: Gpu, decision: Decision, limit_bytes: int) -> VirtualGpu:
    """`gpu` with so much memory that PyTorch can take `limit_bytes`, and not more."""
    usable = limit_bytes + context_bytes(gpu, torch_release()).likely
    config = AllocatorConfig.from_env(os.environ)
    if decision.expandable_segments:
        config = replace(config, expandable_segments=True)
    return VirtualGpu(replace(gpu, usable_bytes=usable), enforce=True, allocator=config)


def room(gpu: Gpu) -> int:
    """Bytes that PyTorch can take on `gpu`: what the driver offers less the CUDA context."""
    return gpu.usable_bytes - context_bytes(gpu, torch_release()).high
