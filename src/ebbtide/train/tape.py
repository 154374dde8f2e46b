"""Record a forward pass below autograd, so that what it saved can be dropped and made again.

Autograd keeps what backward will need: of each operation some inputs and outputs. A plan
says which of those storages to drop. The tape notes how each dropped one was made, by the
very calls that reached the kernels: after autocast chose dtypes and with the state of the
random generator. Calling them again gives the same bits, runs no Python of the model (no
hooks, caches or counters move on twice) and takes the same way through data-dependent code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide.train.schema import forgets, is_random, written_tensors
from ebbtide.train.values import Operation, Reference, Scratch, Value, copied

_PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)


class Tape(TorchDispatchMode):
    """Notes the operations of one forward pass; stays on during backward to see writes.

    Args:
        needed: numbers of the operations that recipes consist of; None for all.
        rebuilt: whether the value at a place (operation, output) is to be dropped.

    Attributes:
        recording: on in the forward pass, off from `backward` on.
        count: operations so far.
    """

    def __init__(
        self,
        needed: frozenset[int] | None,
        rebuilt: Callable[[tuple[int, int]], bool],
    ) -> None:
        super().__init__()
        self.needed = needed
        self.rebuilt = rebuilt
        self.recording = True
        self.count = 0
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
        super().__exit__(kind, error, trace)
        self._values.clear()
        self._owned.clear()
        self._ends.clear()
        self._places.clear()

    def backward(self) -> None:
        """The forward pass is over: from here on saved tensors alone own recipes."""
        self.recording = False
        self._owned.update(self._values)
        self._values.clear()

    def forward(self, again: bool) -> None:
        """A forward pass goes on, or with `again` begins anew."""
        self.recording = True
        if again:
            self.count = 0

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
        if self.recording:
            self.count = number + 1
            if self.needed is None or number in self.needed:
                return self._record(number, func, args, kwargs, writes)
        for tensor in writes:
            self._keep_version(tensor)
        result = func(*args, **kwargs)
        self._count_writes(writes, None)
        return result

    def _record(
        self, number: int, func: Any, args: Any, kwargs: dict[str, Any], writes: list[Tensor]
    ) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        known = set()
        passing = {id(tensor) for tensor in writes} if forgets(func) else ()
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                known.add(leaf.untyped_storage()._cdata)
                leaves[i] = Scratch.like(leaf) if id(leaf) in passing else self.reference(leaf)
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
                if self.rebuilt((number, i)):
                    value.writes.append(operation)
                made = weakref.ref(value)
            operation.outputs.append(made)
        self._count_writes(writes, operation)
        self.recorded(operation, result, writes)
        return result

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
