"""What one step's forward pass made: storages, and the operations that can make them again.

A *value* is one storage with its history. It has versions: version 0 is what the operation
that made it wrote, and each later operation in place adds one. A *recipe* is the chain of
operations from values that are still there. References own what they lead to, so that a
recipe keeps its inputs for exactly as long as something may still be rebuilt from it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


class Value:
    """One storage of the step.

    Attributes:
        place: number of the operation that made it and of its output there; None for what
            was there before: parameters, buffers, inputs.
        nbytes: size of the storage.
        version: how often it has been written since it was made or first seen.
        writes: the operations that made it what it is, one a version; empty where it is
            never rebuilt.
        handles: saved tensors that stand for it and have not been released.
        held: the storage, kept alive for recipes.
        rebuilt: the storage made again, and the version that it has.
        spent: whether nothing will be made from it any more.
        lent: the storage made again for a reader that has it and will let go of it, and its
            version.
        fake: mode and device of the fake tensors on it; None for real ones.
        copies: contents of earlier versions, by version, copied before they were overwritten.
    """

    __slots__ = (
        "__weakref__",
        "copies",
        "fake",
        "handles",
        "held",
        "lent",
        "live",
        "nbytes",
        "place",
        "rebuilt",
        "spent",
        "version",
        "writes",
    )

    def __init__(self, tensor: Tensor, place: tuple[int, int] | None) -> None:
        storage = tensor.untyped_storage()
        self.place = place
        self.nbytes = storage.nbytes()
        self.fake = (tensor.fake_mode, tensor.device) if isinstance(tensor, FakeTensor) else None
        self.version = 0
        self.writes: list[Operation] = []
        self.handles = 0
        self.held: torch.UntypedStorage | None = None
        self.rebuilt: tuple[torch.UntypedStorage, int] | None = None
        self.spent = False
        self.lent: tuple[weakref.ref[torch.UntypedStorage], int] | None = None
        self.copies: dict[int, torch.UntypedStorage] = {}
        self.live = weakref.ref(storage)

    def at(self, version: int) -> torch.UntypedStorage | None:
        """The storage with the content of `version`, if it is there without computing."""
        if self.rebuilt is not None and self.rebuilt[1] == version:
            return self.rebuilt[0]
        lent = self.lent[0]() if self.lent is not None and self.lent[1] == version else None
        if lent is not None:
            return lent
        if version in self.copies:
            return self.copies[version]
        return self.live() if self.version == version else None


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor as an operation saw it: a view of a value at one of its versions."""

    value: Value
    version: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor, value: Value) -> Reference:
        """The reference that `tensor` is, now."""
        return cls(
            value,
            value.version,
            tensor.size(),
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
        )

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        """The tensor, on `storage`."""
        return _tensor(self.value, storage, self.dtype, self.offset, self.size, self.stride)


def copied(value: Value, storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy of `storage`, which holds `value`."""
    whole = _tensor(value, storage, torch.uint8, 0, (storage.nbytes(),), (1,))
    return whole.clone().untyped_storage()


def _tensor(value: Value, storage: torch.UntypedStorage, dtype: torch.dtype, *view: Any) -> Tensor:
    with _disable_current_modes():
        made = torch.empty(0, dtype=dtype, device=storage.device)
        made.set_(storage, *view)
        if value.fake is None:
            return made
        mode, device = value.fake
        return FakeTensor(mode, made, device)


@dataclass(frozen=True, slots=True)
class Scratch:
    """An argument that is written and that nothing depends on, as a batch norm's statistics."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def like(cls, tensor: Tensor) -> Scratch:
        """Of the shape of `tensor`."""
        return cls(tensor.size(), tensor.dtype, tensor.device)

    def make(self) -> Tensor:
        """Memory to write to."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)


@dataclass(slots=True)
class Operation:
    """One call below autograd, as it can be made again.

    Attributes:
        number: in the forward pass, from 0.
        func: the overload.
        leaves, spec: arguments as pytree has them, tensors as a `Reference` or `Scratch`.
        outputs: the value that each output leaf made, None for views and other objects.
        random: the generator it drew from and that one's state before; None for most.
    """

    number: int
    func: Any
    leaves: list[Any]
    spec: Any
    outputs: list[weakref.ref[Value] | None]
    random: tuple[torch.Generator, Tensor] | None = None

    def inputs(self) -> list[Reference]:
        """The tensors among the arguments."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Reference)]
