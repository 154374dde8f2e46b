"""Record a forward pass below autograd, so that what it saved can be dropped and made again.

Autograd keeps what backward will need: of each operation some inputs and outputs. A plan
says which of those storages to drop. The tape notes how each dropped one was made, by the
very calls that reached the kernels: after autocast chose dtypes and with the state of the
random generator. Calling them again gives the same bits, runs no Python of the model (no
hooks, caches or counters move on twice) and takes the same way through data-dependent code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide.train.schema import (
    forgets,
    is_random,
    makes_tensors,
    name_of,
    repeatable,
    written_tensors,
)
from ebbtide.train.values import Operation, Reference, Scratch, Value, copied

_PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)


class Tape(TorchDispatchMode):
    """Notes the operations of one forward pass; stays on otherwise to see writes.

    Args:
        rebuilt: whether the value at a place (operation, output) is to be dropped.
        expected: names of the operations that the places were numbered by. Where a pass
            differs from them, everything is kept from there on. None: not compared.

    Attributes:
        recording: on from `begin` to `backward`.
        count: operations of this forward pass so far.
        lost: the number of the first operation that was not the expected one, and its name.
    """

    def __init__(
        self,
        rebuilt: Callable[[tuple[int, int]], bool],
        expected: Sequence[str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rebuilt = rebuilt
        self.expected = expected
        self.recording = False
        self.count = 0
        self.lost: tuple[int, str] | None = None
        # By the storage's address; an entry goes with its storage.
        self._values: dict[int, Value] = {}
        # Those that recipes read and keep; an entry goes with the last recipe.
        self._owned: weakref.WeakValueDictionary[int, Value] = weakref.WeakValueDictionary()
        self._ends: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._places: dict[int, tuple[int, int]] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._values.clear()
        self._owned.clear()
        self._ends.clear()
        self._places.clear()

    def begin(self, recording: bool = True) -> None:
        """A forward pass begins; without `recording` it saves nothing and is not followed."""
        self.backward()
        self._places.clear()
        self.recording = recording
        self.count = 0
        self.lost = None

    def backward(self) -> None:
        """The forward pass is over: from here on saved tensors alone own recipes."""
        self.recording = False
        self._owned.update(self._values)
        self._values.clear()

    def forward(self) -> None:
        """A forward pass goes on after a backward pass inside it."""
        self.recording = True

    def find(self, tensor: Tensor) -> Value | None:
        """The value whose storage holds `tensor`, if it is followed."""
        key = tensor.untyped_storage()._cdata
        return self._values.get(key) or self._owned.get(key)

    def reference(self, tensor: Tensor) -> Reference:
        """`tensor` as it is now. What was not made on the tape is kept as it is."""
        value = self.find(tensor)
        if value is None:
            # Kept, and let go of by the operations that read it so far, or from outside.
            key = tensor.untyped_storage()._cdata
            value = self._follow(tensor, self._places.get(key))
        if value.held is None and not value.writes:
            # From here on the recipes own it, and with it the storage.
            key = tensor.untyped_storage()._cdata
            value.held = tensor.untyped_storage()
            self._owned[key] = value
            self._values.pop(key, None)
        return Reference.of(tensor, value)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # a wrapper: what it does inside comes here
        writes = written_tensors(func, args, kwargs)
        number = self.count
        if self.recording and makes_tensors(func):
            self.count = number + 1
            self._compare(number, func)
            return self._record(number, func, args, kwargs, writes)
        for tensor in writes:
            self._keep_version(tensor)
        result = func(*args, **kwargs)
        self._count_writes(writes, None)
        return result

    def _compare(self, number: int, func: Any) -> None:
        if self.expected is None or self.lost is not None:
            return
        if number >= len(self.expected) or self.expected[number] != name_of(func):
            self.lost = number, name_of(func)

    def _drops(self, func: Any, place: tuple[int, int]) -> bool:
        return self.lost is None and repeatable(func) and self.rebuilt(place)

    def _record(
        self, number: int, func: Any, args: Any, kwargs: dict[str, Any], writes: list[Tensor]
    ) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        known = set()
        passing = {id(tensor) for tensor in writes} if forgets(func) else ()
        own = self._written(writes)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            known.add(leaf.untyped_storage()._cdata)
            if id(leaf) in passing:
                leaves[i] = Scratch.like(leaf)
                continue
            reference = self.reference(leaf)
            leaves[i] = reference.weak() if reference.value is own else reference
        for tensor in writes:
            self._keep_version(tensor)
        random = _generator(leaves) if is_random(func) else None
        result = func(*args, **kwargs)
        operation = Operation(number, func, leaves, spec, [], random)
        for i, leaf in enumerate(pytree.tree_leaves(result)):
            made = None
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in known:
                known.add(leaf.untyped_storage()._cdata)
                value = self._follow(leaf, (number, i))
                if self._drops(func, (number, i)):
                    value.writes.append(operation)
                made = weakref.ref(value)
            operation.outputs.append(made)
        self._count_writes(writes, operation if own is not None else None)
        self.recorded(operation, result, writes)
        return result

    def _written(self, writes: list[Tensor]) -> Value | None:
        """The value that is written and can be made again, if it is one alone.

        Of several, each would need what the others were before, for as long as it lives.
        """
        found = {id(value): value for value in map(self.find, writes) if value is not None}
        value = next(iter(found.values())) if len(found) == 1 else None
        return value if value is not None and value.writes else None

    def recorded(self, operation: Operation, result: Any, writes: list[Tensor]) -> None:
        """For those who look on: what was called, what came, and what it wrote in place."""

    def _follow(self, tensor: Tensor, place: tuple[int, int] | None) -> Value:
        storage = tensor.untyped_storage()
        key = storage._cdata
        value = Value(tensor, place)
        self._values[key] = value
        if place is not None:
            self._places[key] = place

        def end(gone: weakref.ref[torch.UntypedStorage]) -> None:
            if self._ends.get(key) is gone:
                del self._ends[key]
                self._values.pop(key, None)
                self._owned.pop(key, None)
                self._places.pop(key, None)

        self._ends[key] = weakref.ref(storage, end)
        return value

    def _count_writes(self, tensors: list[Tensor], operation: Operation | None) -> None:
        for value in {id(v): v for v in map(self.find, tensors) if v is not None}.values():
            value.version += 1
            if value.writes and operation is not None:
                value.writes.append(operation)

    def _keep_version(self, tensor: Tensor) -> None:
        """Copy what a recipe may read before it is overwritten."""
        value = self.find(tensor)
        if value is None or value.held is None or isinstance(tensor, torch.nn.Parameter):
            return
        if value.version not in value.copies:
            value.copies[value.version] = copied(value, value.held)


def _generator(leaves: list[Any]) -> tuple[torch.Generator, Tensor]:
    """The generator that the call will draw from, and its state."""
    for leaf in leaves:
        if isinstance(leaf, torch.Generator):
            return leaf, leaf.get_state()
    for leaf in leaves:
        if isinstance(leaf, Reference):
            storage = leaf.value.live()
            if storage is not None and storage.device.type == "cuda":
                made = torch.cuda.default_generators[storage.device.index or 0]
                return made, made.get_state()
    return torch.default_generator, torch.default_generator.get_state()
