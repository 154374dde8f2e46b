"""Record a workload on the virtual GPU: phases, what each allocation is for, the trace.

with VirtualGpu("l4") as gpu, Recorder(gpu) as recorder:
train()
trace = recorder.trace()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ebbtide.trace.build import build_trace
from ebbtide.trace.model import Category, Trace
from ebbtide.vgpu.places import ENTERED
from ebbtide.vgpu.virtual_gpu import VirtualGpu

# Where Transformers' outputs hold what is kept between forward passes.
_CACHES = ("past_key_values", "cache", "cache_params", "mems")


class Recorder:
    """Follows a program through its phases and marks its allocations.

    Args:
        gpu: an active virtual GPU.

    Attributes:
        steps: optimizer steps so far; of several optimizers, the one that stepped most.
        forwards: outermost module calls so far.
        trained: whether a backward pass has run.
    """

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu
        self.steps = 0
        self.forwards = 0
        self.trained = False
        self._on_step: Callable[[int], None] | None = None
        self._on_forward: Callable[[int], None] | None = None
        # Not held: what the program drops gives its memory back.
        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._marked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._hooks: list[Any] = []

    def __enter__(self) -> Recorder:
        places = self.gpu.places
        places.on_root, places.on_engine = self._root, self._engine
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self.gpu.places.on_root = self.gpu.places.on_engine = None
        for module in self.gpu.places.roots:
            self._mark_module(module)

    def on_step(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the number of steps after each optimizer step."""
        self._on_step = listener

    def on_forward(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the number of forwards after each outermost module call."""
        self._on_forward = listener

    def trace(self, **meta: Any) -> Trace:
        """What has been recorded. `meta` is kept with it."""
        return build_trace(self.gpu, trained=self.trained, meta=meta)

    # -- phases

    def _root(self, module: torch.nn.Module, output: Any) -> None:
        if self.gpu.places.in_backward:  # recomputation
            return
        tape = self.gpu.tape
        if output is ENTERED:
            if module not in self._marked:  # it may be gone before the end
                self._marked.add(module)
                self._mark_module(module)
            if torch.is_grad_enabled() and module.training:
                tape.set_phase("forward", self.steps + 1)
            else:
                tape.set_phase("evaluation", self.forwards + 1)
            return
        self.forwards += 1
        self._mark_cache(output)
        if self._on_forward is not None:
            self._on_forward(self.forwards)

    def _engine(self, starts: bool) -> None:
        if starts:
            self.trained = True
            self.gpu.tape.set_phase("backward", self.steps + 1)
            return
        for module in self.gpu.places.roots:
            self._mark_gradients(module.parameters())
        self.gpu.places.forget()
        self.gpu.tape.set_phase("between", self.steps + 1)

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.gpu.tape.set_phase("optimizer", self.steps + 1)
        for group in optimizer.param_groups:
            self._mark_gradients(group["params"])
            for parameter in group["params"]:
                self._mark(parameter, Category.PARAMETER)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for state in list(optimizer.state.values()):
            for value in _tensors(state):
                self._mark(value, Category.OPTIMIZER_STATE)
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.steps = max(self.steps, count)
        self.gpu.tape.set_phase("between", self.steps)
        if self._on_step is not None:
            self._on_step(self.steps)

    # -- what allocations are for

    def _mark(self, tensor: torch.Tensor, category: Category) -> None:
        for row in self.gpu.mode.storages.rows_of(tensor):
            self.gpu.tape.alloc_category[row] = int(category)

    def _mark_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                self._mark(parameter.grad, Category.GRADIENT)

    def _mark_module(self, module: torch.nn.Module) -> None:
        for buffer in module.buffers():
            self._mark(buffer, Category.BUFFER)
        for parameter in module.parameters():
            self._mark(parameter, Category.PARAMETER)
            if parameter.grad is not None:
                self._mark(parameter.grad, Category.GRADIENT)

    def _mark_cache(self, output: Any) -> None:
        if not isinstance(output, dict):
            return
        for name, value in output.items():
            if name in _CACHES:
                for tensor in _tensors(value):
                    self._mark(tensor, Category.KV_CACHE)


def _tensors(value: Any, depth: int = 5) -> Iterable[torch.Tensor]:
    """Tensors in nested containers and in the attributes of cache objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth == 0:
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif type(value).__module__.startswith("transformers."):
        yield from _tensors(vars(value), depth - 1)
