"""Make a dropped value again from the operations on the tape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ebbtide.errors import EbbtideError
from ebbtide.train.holding import Holding
from ebbtide.train.schema import forgets, written
from ebbtide.train.values import Operation, Reference, Scratch, Value


class RebuildError(EbbtideError):
    """A saved tensor was dropped and cannot be made again."""


@dataclass(frozen=True, slots=True)
class Asking:
    """For whom something is made again, under which `Holding`.

    Attributes:
        position: of the reader, in operations of the forward pass.
        final: whether backward comes no second time.
    """

    position: int
    holding: Holding
    final: bool = True

    def stays(self, value: Value) -> bool:
        """Whether `value`, made again, is to be held."""
        position = self.holding.holds.get(value.place) if value.place is not None else None
        return value.handles > 0 if position is None else self.position <= position

    def read(self, value: Value) -> None:
        """Let go of `value` where something was made from it for the last time."""
        last = self.holding.lasts.get(value.place) if value.place is not None else None
        if self.final and last is not None and self.position <= last:
            value.spent = True
            value.held = None
            if not value.handles:
                value.rebuilt = None


def rebuild(wanted: Value, version: int, asking: Asking) -> torch.UntypedStorage:
    """The storage of `wanted` at `version`, made again unless it is there.

    What is made on the way and is to be held stays on its value.

    Raises:
        RebuildError: an input of a recipe has been overwritten or is gone.
    """
    found = wanted.at(version)
    if found is not None:
        return found
    recipe, inputs, read = _recipe(wanted, version)
    making = _Making(wanted, recipe, inputs, asking)
    with _below_autograd():
        for operation in recipe:
            making.call(operation)
    for value in read:
        asking.read(value)
    return making.made[id(wanted)]


def _recipe(
    wanted: Value, version: int
) -> tuple[list[Operation], dict[tuple[int, int], torch.UntypedStorage], list[Value]]:
    """The operations to call in order, and what they read that is there, with its values."""
    calls: dict[int, Operation] = {}
    there: dict[tuple[int, int], torch.UntypedStorage] = {}
    seen = set()
    read: list[Value] = []
    waiting = [(wanted, version)]
    while waiting:
        value, at = waiting.pop()
        if (id(value), at) in seen:
            continue
        seen.add((id(value), at))
        storage = value.at(at)
        if storage is not None:
            there[id(value), at] = storage
            read.append(value)
            continue
        if at >= len(value.writes):
            raise RebuildError(_lost(wanted, value, at))
        for operation in value.writes[: at + 1]:
            if operation.number not in calls:
                calls[operation.number] = operation
                waiting += [
                    (each.value, each.version)
                    for each in operation.inputs()
                    if each.value is not value
                ]
    return [calls[number] for number in sorted(calls)], there, read


def _lost(wanted: Value, value: Value, version: int) -> str:
    what = "a tensor from outside the step" if value.place is None else f"the output {value.place}"
    return (
        f"The saved tensor {wanted.place} cannot be made again: {what} of {value.nbytes} bytes, "
        f"which it is computed from, was overwritten (version {version} is needed, it is at "
        f"{value.version}). Keep it: take {wanted.place} out of the plan."
    )


class _Making:
    """One rebuilding: storages made so far, each until its last reader has been called."""

    def __init__(
        self,
        wanted: Value,
        recipe: list[Operation],
        there: dict[tuple[int, int], torch.UntypedStorage],
        asking: Asking,
    ) -> None:
        self.there = there
        self.asking = asking
        self.made: dict[int, torch.UntypedStorage] = {}
        self._last: dict[int, float] = {id(r.value): o.number for o in recipe for r in o.inputs()}
        self._last[id(wanted)] = math.inf

    def call(self, operation: Operation) -> None:
        """Call it again, and keep what it makes as long as somebody waits for it."""
        leaves = [self._given(leaf) for leaf in operation.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, operation.spec)
        with _state(operation.random):
            result = operation.func(*self._unharmed(operation, args), **kwargs)
        for leaf, made in zip(pytree.tree_leaves(result), operation.outputs, strict=True):
            value = made() if made is not None else None
            if value is None:
                continue
            if id(value) in self._last:
                self.made[id(value)] = leaf.untyped_storage()
            self._offer(value, operation, leaf.untyped_storage())
        for reference in operation.inputs():
            storage = self.made.get(id(reference.value))
            if storage is not None:
                self._offer(reference.value, operation, storage)
                if self._last[id(reference.value)] == operation.number:
                    del self.made[id(reference.value)]

    def _offer(self, value: Value, operation: Operation, storage: torch.UntypedStorage) -> None:
        """Keep what is finished and to be held."""
        finished = bool(value.writes) and value.writes[-1] is operation
        if finished and value.rebuilt is None and self.asking.stays(value):
            value.rebuilt = (storage, len(value.writes) - 1)

    def _given(self, leaf: Any) -> Any:
        if isinstance(leaf, Scratch):
            return leaf.make()
        if not isinstance(leaf, Reference):
            return leaf
        storage = self.made.get(id(leaf.value))
        if storage is None:
            storage = self.there[id(leaf.value), leaf.version]
        return leaf.on(storage)

    def _unharmed(self, operation: Operation, args: Any) -> list[Any]:
        """The arguments, with copies of what would be written but is not being made here."""
        given = list(args)
        mine = {storage._cdata for storage in self.made.values()}
        if forgets(operation.func):
            return given
        for position, _, by_name in written(operation.func, args):
            target = given[position] if not by_name and position < len(given) else None
            if isinstance(target, Tensor) and target.untyped_storage()._cdata not in mine:
                given[position] = target.clone()
        return given


@contextmanager
def _below_autograd() -> Iterator[None]:
    """As kernels are called in a forward pass: gradients are on, autograd has been passed."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


@contextmanager
def _state(random: tuple[torch.Generator, Tensor] | None) -> Iterator[None]:
    """The generator as it was then, and afterwards as it is now."""
    if random is None:
        yield
        return
    generator, state = random
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)
