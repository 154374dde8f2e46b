"""A workload on a virtual GPU: nothing is computed, every byte is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ebbtide.fitting.subject import Replay
from ebbtide.gpus import Gpu, context_bytes
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.recompute import Recompute
from ebbtide.train.recomputing import Recomputing
from ebbtide.train.survey import Survey
from ebbtide.vgpu.virtual_gpu import VirtualGpu, torch_release

Step = Callable[[], Any]


class VirtualSubject:
    """Steps of what `build` makes on a virtual GPU that is on.

    Args:
        build: returns a function that takes one step.
        gpu: where.
    """

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

    def replay(self, recompute: Recompute | None, limit_bytes: int) -> Replay:
        """Two steps on a GPU that has `limit_bytes` for PyTorch."""
        limited = limit(self._gpu, limit_bytes)
        with VirtualGpu(limited, enforce=True) as gpu:
            try:
                step = self._build()
                if recompute is None:
                    step(), step()
                else:
                    with Recomputing(recompute):
                        step(), step()
            except torch.OutOfMemoryError:
                return Replay(gpu.memory.max_memory_allocated(), fits=False)
            return Replay(gpu.memory.max_memory_allocated(), fits=True)


def limit(gpu: Gpu, limit_bytes: int) -> Gpu:
    """The same GPU with so much memory that PyTorch can take `limit_bytes`."""
    return replace(gpu, usable_bytes=limit_bytes + context_bytes(gpu, torch_release()).likely)


def room(gpu: Gpu) -> int:
    """Bytes that PyTorch can take on `gpu`: what the driver offers less the CUDA context."""
    return gpu.usable_bytes - context_bytes(gpu, torch_release()).high
