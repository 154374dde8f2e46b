"""A workload on a virtual GPU: nothing is computed, every byte is counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch

from ebbtide.fitting.subject import Replay
from ebbtide.gpus import Gpu, context_bytes
from ebbtide.plan.decision import Decision
from ebbtide.plan.graph import StepGraph
from ebbtide.train.survey import Survey
from ebbtide.vgpu.allocator import AllocatorConfig
from ebbtide.vgpu.virtual_gpu import VirtualGpu, torch_release

# The first makes the optimizer's state.
_STEPS = 2


class Taker(Protocol):
    """What takes steps on the virtual GPU that is on."""

    def __call__(self) -> Any:
        """One step."""


class Maker(Protocol):
    """Builds what takes steps, with the contexts of a decision."""

    def __call__(self, decision: Decision) -> AbstractContextManager[Taker]:
        """A context in which steps are taken as `decision` says."""


class VirtualSubject:
    """Steps of what `make` builds on a virtual GPU that is on.

    Args:
        make: builds it.
        gpu: where.
        steps: whether it can do all that a decision says; else it recomputes at most.
        batch_size: samples of a step.
        check: refuses decisions by what only real values tell; called off the virtual GPU.
    """

    virtual = True

    def __init__(
        self,
        make: Maker,
        gpu: Gpu,
        *,
        steps: bool = False,
        batch_size: int = 1,
        check: Callable[[Decision], object] = lambda decision: None,
    ) -> None:
        self._make, self._gpu, self._check = make, gpu, check
        self.steps, self.batch_size = steps, batch_size

    def survey(self, decision: Decision) -> StepGraph:
        """The second step: the first makes the optimizer's state."""
        self._check(decision)
        with VirtualGpu(self._gpu) as gpu, self._make(decision) as step:
            step()
            survey = Survey(gpu)
            with survey.saved:
                step()
            return survey.graph()

    def replay(self, decision: Decision, limit_bytes: int) -> Replay:
        """Two steps on a GPU that has `limit_bytes` for PyTorch."""
        with limited(self._gpu, decision, limit_bytes) as gpu:
            try:
                with self._make(decision) as step:
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
