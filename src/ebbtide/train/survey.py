"""Record a step on the virtual GPU as the graph that the planner works on.

Nothing that autograd saves is held: what backward gets instead are tensors of the same
shape without memory, which on a virtual GPU is all there is to a tensor. So every storage
ends where the program itself lets go of it.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ebbtide.plan.graph import Call, Source, Step, StepGraph, Storage
from ebbtide.train.saved import Dropped, Kept, SavedTensors
from ebbtide.train.schema import repeatable
from ebbtide.train.tape import Tape
from ebbtide.train.values import Operation, Reference, Value
from ebbtide.vgpu import tape as columns
from ebbtide.vgpu.virtual_gpu import VirtualGpu

BLOCK = 512
"""Bytes to which the caching allocator rounds (c10/cuda/CUDACachingAllocator.cpp)."""


class _Noting(SavedTensors):
    """Drops everything, and tells the survey what autograd saves, reads and releases."""

    tape: Survey

    def drop(self, tensor: Tensor, value: Value) -> Any:
        """Noted where the virtual GPU knows its row and no real content follows it."""
        row = self.tape.row(tensor)
        known = self.tape.gpu.mode.shadows.known(tensor) is not None
        if row is None or known:
            return Kept(tensor)
        self.tape.enter(value, row)
        self.tape.note(Step.SAVE, row)
        return super().drop(tensor, value)

    def restore(self, saved: Dropped) -> Tensor:
        """A tensor of its shape; there is nothing to compute."""
        value = saved.reference.value
        self.tape.note(Step.USE, self.tape.row_of(value))
        return self.tape.empty(saved.reference)

    def released(self, saved: Dropped) -> None:
        """Noted."""
        self.tape.note(Step.RELEASE, self.tape.row_of(saved.reference.value))


class Survey(Tape):
    """A tape of everything, with the memory of the virtual GPU beside it.

    ``with survey.saved:`` around one step.

    Args:
        gpu: an active virtual GPU.
    """

    def __init__(self, gpu: VirtualGpu) -> None:
        super().__init__(None, lambda place: True)
        self.gpu = gpu
        self.saved = _Noting(self)
        self._notes: list[tuple[int, Step, int]] = []
        self._calls: list[tuple[Operation, int, int, list[tuple[int, int] | None]]] = []
        self._begin = 0
        self._rows: dict[tuple[int, int], int] = {}
        self._row: weakref.WeakKeyDictionary[Value, int] = weakref.WeakKeyDictionary()
        self._first_event = self._first_row = self._base = 0
        self._on = False

    def __enter__(self) -> Survey:
        tape = self.gpu.tape
        self._first_event, self._first_row = len(tape.kind), len(tape.alloc_bytes)
        self._base = self.gpu.memory.memory_allocated()
        self._on = True
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._on = False

    def note(self, step: Step, row: int) -> None:
        """Remember what autograd did, and when."""
        if self._on:
            self._notes.append((len(self.gpu.tape.kind), step, row))

    def _record(
        self, number: int, func: Any, args: Any, kwargs: dict[str, Any], writes: list[Tensor]
    ) -> Any:
        self.note(Step.CALL, number)
        self._begin = len(self.gpu.tape.op_name)
        return super()._record(number, func, args, kwargs, writes)

    def recorded(self, operation: Operation, result: Any, writes: list[Tensor]) -> None:
        """Note the rows of the virtual GPU's tape that belong to it."""
        row_of = self.gpu.mode.storages.row_of
        leaves = pytree.tree_leaves(result)
        for i, output in enumerate(operation.outputs):
            row = row_of(leaves[i]) if output is not None else None
            if row is not None:
                self._rows[operation.number, i] = row
        wrote = [value.place for value in map(self.find, writes) if value is not None]
        self._calls.append((operation, self._begin, len(self.gpu.tape.op_name), wrote))

    def row(self, tensor: Tensor) -> int | None:
        """The row of the virtual GPU's tape that `tensor` lies on."""
        return self.gpu.mode.storages.row_of(tensor)

    def enter(self, value: Value, row: int) -> None:
        """Remember the row of a value."""
        self._row[value] = row

    def row_of(self, value: Value) -> int:
        """The row that was entered for `value`."""
        return self._row[value]

    def empty(self, reference: Reference) -> Tensor:
        """A tensor without memory."""
        mode, device = reference.value.fake  # type: ignore[misc]
        with _disable_current_modes():
            bare = torch.empty(reference.value.nbytes, dtype=torch.uint8, device="meta")
            view = torch.empty(0, dtype=reference.dtype, device="meta").set_(
                bare.untyped_storage(), reference.offset, reference.size, reference.stride
            )
            made = FakeTensor(mode, view, device)
        self.gpu.mode.storages.add_new(made, 0)
        return made

    def graph(self) -> StepGraph:
        """The step that was recorded."""
        return _Building(self).graph()


class _Building:
    """Turns a survey into a graph: rows of the tape become numbers of storages."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.tape = survey.gpu.tape
        rows = range(survey._first_row, len(self.tape.alloc_bytes))
        taken = [row for row in rows if self.tape.alloc_bytes[row]]
        self.number = {row: i for i, row in enumerate(taken)}
        self.bytes = [-(-self.tape.alloc_bytes[row] // BLOCK) * BLOCK for row in taken]
        self.of_place = {
            place: self.number[row] for place, row in survey._rows.items() if row in self.number
        }

    def graph(self) -> StepGraph:
        """All of it."""
        calls: dict[int, list[int]] = {}
        wrote: dict[int, list[int]] = {}
        for operation, _, _, places in self.survey._calls:
            for place in places:
                number = self.of_place.get(place) if place is not None else None
                if number is not None:
                    wrote.setdefault(operation.number, []).append(number)
        makes: dict[int, list[int]] = {}
        for (call, _), number in self.of_place.items():
            makes.setdefault(call, []).append(number)
            calls[number] = [call]
        for call, numbers in wrote.items():
            for number in numbers:
                calls[number].append(call)
        places = {number: place for place, number in self.of_place.items()}
        events, scratch = self._events(makes)
        return StepGraph(
            base_bytes=self.survey._base,
            storages=tuple(
                Storage(nbytes, places.get(i), tuple(calls.get(i, ())))
                for i, nbytes in enumerate(self.bytes)
            ),
            calls=tuple(self._call(each, makes, wrote, scratch) for each in self.survey._calls),
            events=tuple(events),
            seconds=sum(self.tape.op_seconds[self.survey._calls[0][1] :]),
        )

    def _call(
        self,
        recorded: tuple[Operation, int, int, Any],
        makes: dict[int, list[int]],
        wrote: dict[int, list[int]],
        scratch: dict[int, int],
    ) -> Call:
        operation, begin, end, _ = recorded
        sources = []
        for reference in operation.inputs():
            place = reference.value.place
            if place in self.of_place:
                sources.append(Source(self.of_place[place], reference.version))
        return Call(
            name=str(operation.func),
            seconds=sum(self.tape.op_seconds[begin:end]),
            flops=sum(self.tape.op_flops[begin:end]),
            sources=tuple(dict.fromkeys(sources)),
            makes=tuple(makes.get(operation.number, ())),
            writes=tuple(wrote.get(operation.number, ())),
            scratch_bytes=scratch.get(operation.number, 0),
            repeatable=repeatable(operation.func),
        )

    def _events(self, makes: dict[int, list[int]]) -> tuple[list[tuple[int, int]], dict[int, int]]:
        survey, tape = self.survey, self.tape
        events: list[tuple[int, int]] = []
        scratch: dict[int, int] = {}
        notes = iter([*survey._notes, (1 << 62, Step.CALL, -1)])
        at, step, arg = next(notes)
        call, used = -1, 0
        for position in range(survey._first_event, len(tape.kind) + 1):
            while at <= position:
                if step == Step.CALL:
                    call, used = arg, 0
                    events.append((step, arg))
                elif arg in self.number:
                    events.append((step, self.number[arg]))
                    call = call if step == Step.SAVE else -1
                at, step, arg = next(notes)
            if position == len(tape.kind) or tape.kind[position] not in (
                columns.ALLOC,
                columns.FREE,
            ):
                continue
            number = self.number.get(tape.arg[position])
            if number is None:
                continue
            begins = tape.kind[position] == columns.ALLOC
            events.append((Step.ALLOC if begins else Step.FREE, number))
            if call >= 0 and number not in makes.get(call, ()):
                used += self.bytes[number] if begins else -self.bytes[number]
                scratch[call] = max(scratch.get(call, 0), used)
        return events, scratch
