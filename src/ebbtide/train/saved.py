"""Saved tensors under a plan: kept with PyTorch's check of versions, or dropped and rebuilt."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ebbtide.train.rebuild import rebuild
from ebbtide.train.tape import Tape
from ebbtide.train.values import Reference


class Kept:
    """A saved tensor that stays. Hooks turn PyTorch's own check of versions off; this is it."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version


class Dropped:
    """Stands for a saved tensor whose storage is made again."""

    __slots__ = ("reference",)

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        reference.value.handles += 1

    def __del__(self) -> None:
        value = self.reference.value
        value.handles -= 1
        if not value.handles:
            value.rebuilt = None


class SavedTensors:
    """Pack and unpack hooks over a tape; a context manager for one step.

    Args:
        tape: records the forward pass.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()  # type: ignore[no-untyped-call]
        self.tape.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tape.__exit__(kind, error, trace)
        self._hooks.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _pack(self, tensor: Tensor) -> Any:
        value = self.tape.find(tensor) if self.tape.recording else None
        if value is None or len(value.writes) != value.version + 1 or is_odd(tensor):
            return Kept(tensor)
        return Dropped(Reference.of(tensor, value))

    def _unpack(self, saved: Kept | Dropped) -> Tensor:
        if isinstance(saved, Kept):
            if saved.tensor._version != saved.version:
                raise RuntimeError(_modified(saved.tensor, saved.tensor._version, saved.version))
            return saved.tensor
        reference = saved.reference
        value = reference.value
        if value.version != reference.version:
            raise RuntimeError(_modified(reference, value.version, reference.version))
        storage = rebuild(value, reference.version)
        if value.handles > 0 and value.live() is not storage:
            value.rebuilt = (storage, reference.version)
        return reference.on(storage)


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
