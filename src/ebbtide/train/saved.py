"""Saved tensors under a plan: kept with PyTorch's check of versions, or dropped and rebuilt."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ebbtide.train.holding import Holding
from ebbtide.train.outermost import OutermostCalls
from ebbtide.train.rebuild import Asking, rebuild
from ebbtide.train.tape import Tape
from ebbtide.train.values import Reference, Value

_PLAIN = Holding()
_engine = torch.autograd.Variable._execution_engine
# The number of the backward pass that calls us, or that there is none.
_running: Callable[[], int] = torch._C._current_graph_task_id
_NONE = -1
# Whether that pass was asked to retain the graph.
_keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph


class Kept:
    """A saved tensor that stays. Hooks turn PyTorch's own check of versions off; this is it."""

    __slots__ = ("owner", "tensor", "version")

    def __init__(self, owner: SavedTensors | None, tensor: Tensor) -> None:
        self.owner = owner
        self.tensor = tensor
        self.version = tensor._version
        if owner is not None:
            owner.waiting += 1

    def __del__(self) -> None:
        if self.owner is not None:
            self.owner.waiting -= 1

    def check(self) -> Tensor:
        """The tensor, unless it has been overwritten."""
        if self.tensor._version != self.version:
            raise RuntimeError(_modified(self.tensor, self.tensor._version, self.version))
        return self.tensor


class Dropped:
    """Stands for a saved tensor whose storage is made again."""

    __slots__ = ("owner", "position", "reference")

    def __init__(self, owner: SavedTensors, reference: Reference) -> None:
        self.owner, self.reference = owner, reference
        self.position = owner.tape.count
        reference.value.handles += 1
        owner.waiting += 1

    def __del__(self) -> None:
        value = self.reference.value
        value.handles -= 1
        if not value.handles and (value.spent or value.place not in self.owner.holding.lasts):
            value.rebuilt = None
        self.owner.waiting -= 1
        self.owner.released(self)

    def check(self) -> None:
        """Raise what PyTorch would if the tensor had been overwritten."""
        now, then = self.reference.value.version, self.reference.version
        if now != then:
            raise RuntimeError(_modified(self.reference, now, then))


class SavedTensors:
    """Pack and unpack hooks over a tape; a context manager around any number of steps.

    A forward pass begins with the first call of a module while nothing of an earlier pass is
    saved, or with `begin`. It ends where backward first asks for a saved tensor; if some are
    left when that is over, it goes on.

    Args:
        tape: records the forward pass.
        holding: how long what is dropped stays when it is made again.

    Attributes:
        waiting: tensors of this pass that are still saved.
    """

    def __init__(self, tape: Tape, holding: Holding = _PLAIN) -> None:
        self.tape = tape
        self.holding = holding
        self.waiting = 0
        self._backward = _NONE
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._calls = OutermostCalls(self._called)

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()
        self.tape.__enter__()  # type: ignore[no-untyped-call]
        self._calls.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._calls.__exit__(kind, error, trace)
        self.tape.__exit__(kind, error, trace)
        self._hooks.__exit__(kind, error, trace)

    def begin(self) -> None:
        """A forward pass begins here, before any module is called."""
        self.tape.begin(torch.is_grad_enabled())

    def drop(self, tensor: Tensor, value: Value) -> Any:
        """What stands for `tensor`, which is not kept."""
        return Dropped(self, Reference.of(tensor, value))

    def restore(self, saved: Dropped) -> Tensor:
        """The tensor that `saved` stands for."""
        saved.check()
        reference = saved.reference
        value = reference.value
        # What is planned to be read the last time may be read again by another pass.
        final = self.tape.lost is None and not _keeps_graph()
        asking = Asking(saved.position, self.holding, final)
        storage = rebuild(value, reference.version, asking)
        if value.live() is not storage:
            if asking.stays(value):
                value.rebuilt = (storage, reference.version)
            else:
                value.lent = (weakref.ref(storage), reference.version)
        return reference.on(storage)

    def released(self, saved: Dropped) -> None:
        """For those who look on: autograd has done with `saved`."""

    def _called(self) -> None:
        if _running() != _NONE:
            return  # a module that backward calls, as checkpointing does
        self._backward = _NONE  # one that failed did not say that it was over
        if not self.waiting:
            self.begin()

    def _pack(self, tensor: Tensor) -> Any:
        value = self.tape.find(tensor) if self.tape.recording else None
        if value is None or len(value.writes) != value.version + 1 or is_odd(tensor):
            return Kept(self if self.tape.recording else None, tensor)
        keeps = self.holding.keeps.get(value.place) if value.place is not None else None
        if keeps is not None and self.tape.count >= keeps:
            return Kept(self, tensor)
        return self.drop(tensor, value)

    def _unpack(self, saved: Kept | Dropped) -> Tensor:
        if self._backward == _NONE:
            self._backward = _running()
            self.tape.backward()
            _engine.queue_callback(self._ended)
        return saved.check() if isinstance(saved, Kept) else self.restore(saved)

    def _ended(self) -> None:
        """Backward is over; one inside the forward pass has left tensors that are waited for."""
        self._backward = _NONE
        if self.waiting:
            self.tape.forward()


def is_odd(tensor: Tensor) -> bool:
    """Whether a storage and a geometry do not say all of `tensor`."""
    return tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided


def _modified(tensor: Tensor | Reference, version: int, expected: int) -> str:
    """In PyTorch's words (torch/csrc/autograd/saved_variable.cpp, 2.13)."""
    size = list(tensor.size if isinstance(tensor, Reference) else tensor.shape)
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{tensor.dtype} {size}], is at version {version}; expected version "
        f"{expected} instead."
    )
