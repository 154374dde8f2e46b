"""Step each parameter as soon as its gradient is there, and free the gradient at once.

All gradients are then never in memory together. The loop stays as it is: `optimizer.step()`
runs its hooks, counts for schedulers, and updates what was not updated in backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ebbtide.train.optimizer_hooks import AroundStep
from ebbtide.train.optimizer_spent import SpentGradient
from ebbtide.train.optimizer_twin import OptimizerError, check_separable, step_parameters

_engine = torch.autograd.Variable._execution_engine
_active: weakref.WeakSet[Optimizer] = weakref.WeakSet()


class OptimizerInBackward:
    """A context in which backward steps `optimizer`; within itself it does nothing.

    A gradient that was used is replaced by a `SpentGradient`, so what would need it, such as
    clipping by norm, GradScaler or a second backward pass that was not announced, is an error.

    Args:
        optimizer: any whose parameters can be stepped one at a time.
        passes: backward passes whose gradients add up to one step; the last one steps.
        scaler: the GradScaler of the loop, if it has one; refused where it is enabled.
        step: updates the given parameters; as `optimizer` would by default.

    Attributes:
        ready: called with each parameter whose gradient is complete, before it is stepped;
            where it answers False the gradient is dropped and nothing stepped.

    Raises:
        OptimizerError: on entry, where it would not be exact, with the reason.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        passes: int = 1,
        scaler: Any = None,
        step: Callable[[Sequence[Tensor]], None] | None = None,
    ) -> None:
        if passes < 1:
            raise OptimizerError(f"passes is {passes}; at least 1 backward pass makes a step.")
        self.optimizer, self.passes, self.scaler = optimizer, passes, scaler
        self._step = step or (lambda parameters: step_parameters(optimizer, parameters))
        self.ready: Callable[[Tensor], bool] = lambda parameter: True
        self._handles: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        self._around: AroundStep | None = None
        self._ordered: set[int] = set()  # parameters whose state is in its place
        self._spent: list[Tensor] = []
        self._depth = 0
        self._holding = 0
        self._passes = 0  # that are over since the last step
        self._counted = False  # the one that runs

    def __enter__(self) -> OptimizerInBackward:
        if self.optimizer in _active:
            self._depth += self._around is not None
            return self
        self._check()
        self._around = AroundStep(self.optimizer, self._before, self._after)
        if self._around.others():
            number = self._around.others()
            self._around.remove()
            self._around = None
            raise OptimizerError(
                f"The optimizer has {number} step pre-hook(s). They run before the update and may "
                "read or change gradients, which are gone by then. Leave optimizer_in_backward "
                "out of the plan, or remove the hooks."
            )
        _active.add(self.optimizer)
        self._ordered = {id(key) for key in self.optimizer.state}
        self.begin()
        self._attach()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._around is None:
            return
        if self._depth:
            self._depth -= 1
            return
        self._around.remove()
        self._around = None
        for _, handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        _active.discard(self.optimizer)
        self._take_spent()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Backward passes inside add gradients up and step nothing."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1

    def begin(self) -> None:
        """Count backward passes from here on."""
        self._passes, self._counted = 0, False

    def parameters(self) -> Iterator[Tensor]:
        """Those of the optimizer, in its order."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _check(self) -> None:
        if self.scaler is not None and self.scaler.is_enabled():
            raise OptimizerError(
                "GradScaler skips the whole step where any gradient is infinite, which is not "
                "known before the last gradient is there; a step in backward is over by then. "
                "Leave optimizer_in_backward out of the plan, or use bfloat16 without GradScaler."
            )
        check_separable(self.optimizer)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_world_size() > 1:
            raise OptimizerError(
                f"With {torch.distributed.get_world_size()} processes gradients are summed over "
                "them after they are accumulated here, so a step in backward would use this "
                "process's own. Leave optimizer_in_backward out of the plan."
            )

    def _attach(self) -> None:
        """Hook what is trained and is not hooked; groups may be added, layers unfrozen."""
        for p in self.parameters():
            if p.requires_grad and id(p) not in self._handles:
                handle = p.register_post_accumulate_grad_hook(self._accumulated)
                self._handles[id(p)] = (weakref.ref(p), handle)

    def _accumulated(self, parameter: Tensor) -> None:
        if not self._counted:
            self._counted = True
            _engine.queue_callback(self._pass_over)
        if self._holding or self._passes + 1 < self.passes:
            return
        if self.ready(parameter):
            self._step([parameter])
            parameter.grad = SpentGradient(parameter)
        else:
            parameter.grad = None

    def _pass_over(self) -> None:
        self._counted = False
        if not self._holding:
            self._passes += 1

    def _take_spent(self) -> list[Tensor]:
        taken = [p for p in self.parameters() if isinstance(p.grad, SpentGradient)]
        for p in taken:
            p.grad = None
        return taken

    def _before(self) -> None:
        self._spent = self._take_spent()

    def _after(self) -> None:
        for p in self._spent:
            if p.grad is None:
                p.grad = SpentGradient(p)
        self._spent = []
        self.begin()
        self._order_state()
        self._attach()

    def _order_state(self) -> None:
        """New state in the order of the groups, as a plain step makes it."""
        state = self.optimizer.state
        for p in self.parameters():
            if p in state and id(p) not in self._ordered:
                self._ordered.add(id(p))
                state[p] = state.pop(p)
