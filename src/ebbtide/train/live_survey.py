"""Record a step on the device it runs on as the graph that the planner works on.

For the CPU, and for a GPU that is there: real values, real time of each operation. What
kernels allocate inside is not seen. On a virtual GPU `ebbtide.train.survey` sees that too.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from ebbtide.plan.graph import Step, StepGraph
from ebbtide.train.called import Called, describe
from ebbtide.train.saved import Dropped, Kept, SavedTensors
from ebbtide.train.tape import Tape
from ebbtide.train.values import Operation, Value

_REBUILT = -1


class _Following(SavedTensors):
    """Drops everything, and tells the survey what autograd saves, reads and releases."""

    tape: LiveSurvey

    def drop(self, tensor: Tensor, value: Value) -> Any:
        """Followed where the survey knows its storage."""
        number = self.tape.number(tensor)
        if number is None or number < 0:
            return Kept(self, tensor)
        self.tape.note(Step.SAVE, number)
        return super().drop(tensor, value)

    def restore(self, saved: Dropped) -> Tensor:
        """Rebuilt, which is not of the step."""
        self.tape.note(Step.USE, self.tape.number_of(saved.reference.value))
        return self.tape.unseen(lambda: super(_Following, self).restore(saved))

    def released(self, saved: Dropped) -> None:
        """Written down."""
        self.tape.note(Step.RELEASE, self.tape.number_of(saved.reference.value))


class LiveSurvey(Tape):
    """A tape of everything that drops all that is saved, and writes down every storage.

    ``with survey.saved:`` around one forward and backward pass.

    Args:
        base_bytes: what is there throughout: parameters, optimizer state.
    """

    def __init__(self, base_bytes: int = 0) -> None:
        super().__init__(lambda place: True)
        self.base_bytes = base_bytes
        self.saved = _Following(self)
        self._events: list[tuple[int, int]] = []
        self._sizes: list[int] = []
        self._seen: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._calls: list[Called] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._on = self._rebuilding = False
        self._began = 0.0

    def begin(self, recording: bool = True) -> None:
        """What was recorded is of an earlier forward pass, unless this is one of evaluation."""
        super().begin(recording)
        if recording:
            self._events, self._sizes, self._calls = [], [], []
            self._seen, self._numbers = {}, {}
            self._on = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._on = False

    def note(self, step: Step, number: int) -> None:
        """Write an event down."""
        if self._on and not self._rebuilding:
            self._events.append((step, number))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation, and then a look at what it made."""
        if not self.recording:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self._pass(leaf)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if result is not NotImplemented:
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._see(leaf)
        return result

    def _record(
        self, number: int, func: Any, args: Any, kwargs: dict[str, Any], writes: list[Tensor]
    ) -> Any:
        self.note(Step.CALL, number)
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._pass(leaf)
        count = flop_registry.get(func._overloadpacket)
        self._began = time.perf_counter()
        result = super()._record(number, func, args, kwargs, writes)
        if count is not None and self._calls:
            self._calls[-1].flops = count(*args, **kwargs, out_val=result)
        return result

    def recorded(self, operation: Operation, result: Any, writes: list[Tensor]) -> None:
        """Number what it made."""
        seconds = time.perf_counter() - self._began
        leaves = pytree.tree_leaves(result)
        for i, output in enumerate(operation.outputs):
            if output is not None:
                number = self._see(leaves[i])
                if number >= 0:
                    self._numbers[operation.number, i] = number
        self._calls.append(
            Called(
                number=operation.number,
                func=operation.func,
                sources=operation.sources(),
                wrote=[value.place for value in map(self.find, writes) if value is not None],
                seconds=seconds,
            )
        )

    def number(self, tensor: Tensor) -> int | None:
        """The number of the storage of `tensor`; negative for what is not of the step."""
        known = self._seen.get(tensor.untyped_storage()._cdata)
        return known[1] if known is not None else None

    def _pass(self, tensor: Tensor) -> None:
        """An argument that was there before is none of the step's."""
        if self.number(tensor) is None:
            self._enter(tensor, _REBUILT)

    def _see(self, tensor: Tensor) -> int:
        known = self.number(tensor)
        if known is not None:
            return known
        if self._rebuilding:
            self._enter(tensor, _REBUILT)
            return _REBUILT
        number = len(self._sizes)
        self._sizes.append(tensor.untyped_storage().nbytes())
        self._enter(tensor, number)
        self.note(Step.ALLOC, number)
        return number

    def _enter(self, tensor: Tensor, number: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata

        def end(gone: weakref.ref[Any]) -> None:
            known = self._seen.get(key)
            if known is not None and known[0] is gone:
                del self._seen[key]
                if number >= 0 and self._on:
                    self._events.append((Step.FREE, number))

        self._seen[key] = (weakref.ref(storage, end), number)

    def number_of(self, value: Value) -> int:
        """The storage that `value` is; it was made on the tape."""
        return self._numbers[value.place] if value.place is not None else _REBUILT

    def unseen(self, make: Callable[[], Tensor]) -> Tensor:
        """What `make` returns; nothing that it allocates is of the step."""
        self._rebuilding = True
        try:
            made = make()
        finally:
            self._rebuilding = False
        self._pass(made)
        return made

    def graph(self) -> StepGraph:
        """The step that was recorded."""
        calls, storages = describe(self._calls, self._numbers, self._sizes)
        return StepGraph(
            base_bytes=self.base_bytes,
            storages=storages,
            calls=calls,
            events=tuple(self._events),
            seconds=sum(call.seconds for call in calls),
        )
