"""The few operations that lead from a batch to the numbers which its loss is divided by.

Noted in a pass without arithmetic, they are called again for each batch of the same shapes,
in place of another pass through the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ebbtide.train.schema import is_random, written_tensors

Place = tuple[Any, ...]
_LOOK = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True, slots=True)
class Call:
    """One call, with what it was given and what it returned."""

    func: Any
    leaves: list[Any]
    spec: Any
    outputs: list[Any]

    def writes(self) -> list[Tensor]:
        """The tensors that it wrote in place."""
        if not hasattr(self.func, "_schema"):
            return []
        return written_tensors(self.func, *pytree.tree_unflatten(self.leaves, self.spec))


def place_of(tensor: Tensor) -> Place:
    """Where a tensor lies; the same for two views that are the same."""
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.size(),
        tensor.stride(),
        tensor.dtype,
    )


class Program:
    """Computes for another batch the numbers that were computed from this one.

    Where a number went into Python and decided what was computed, it has to be the same.

    Args:
        calls: what was computed from the batch alone, in order.
        batch: the batch that it was noted with.
    """

    def __init__(self, calls: list[Call], batch: Any) -> None:
        self.inputs = [
            place_of(leaf) if isinstance(leaf, Tensor) else None
            for leaf in pytree.tree_leaves(batch)
        ]
        numbers = [
            leaf
            for call in calls
            for leaf in call.outputs
            if isinstance(leaf, Tensor) and leaf.numel() == 1
        ]
        looks = {
            t.untyped_storage()._cdata for call in calls if call.func is _LOOK for t in call.leaves
        }
        self.calls = _leading_to(calls, looks | {place_of(leaf)[0] for leaf in numbers})

    def run(self, batch: Any) -> dict[Place, Tensor] | None:
        """Inputs and results by where they lay; None where Python would see another number."""
        known = {
            place: leaf
            for place, leaf in zip(self.inputs, pytree.tree_leaves(batch), strict=True)
            if place is not None
        }
        with torch.no_grad():
            for call in self.calls:
                given = [
                    known.get(place_of(leaf), leaf) if isinstance(leaf, Tensor) else leaf
                    for leaf in call.leaves
                ]
                args, kwargs = pytree.tree_unflatten(given, call.spec)
                result = pytree.tree_leaves(call.func(*args, **kwargs))
                if call.func is _LOOK and result != call.outputs:
                    return None
                for before, now in zip(call.outputs, result, strict=True):
                    if isinstance(before, Tensor):
                        known[place_of(before)] = now
        return known

    def repeatable(self) -> bool:
        """Whether the values come from the batch by calls that only compute."""
        known = {place for place in self.inputs if place is not None}
        own = {place[0] for place in known}
        made: set[int] = set()
        for call in self.calls:
            given = [leaf for leaf in call.leaves if isinstance(leaf, Tensor)]
            for leaf in given:
                # A view that was made unseen would be read as it was then.
                if leaf.untyped_storage()._cdata in own | made and place_of(leaf) not in known:
                    return False
            if any(t.untyped_storage()._cdata not in made for t in call.writes()):
                return False
            if hasattr(call.func, "tags") and is_random(call.func):
                return False
            outputs = [place_of(leaf) for leaf in call.outputs if isinstance(leaf, Tensor)]
            known.update(outputs)
            made |= {each[0] for each in outputs} - {t.untyped_storage()._cdata for t in given}
        return True


def _leading_to(calls: list[Call], storages: set[int]) -> list[Call]:
    """The calls that make or write `storages`, and those that lead to them."""
    kept = []
    for call in reversed(calls):
        touched = [leaf for leaf in call.outputs if isinstance(leaf, Tensor)] + call.writes()
        if call.func is _LOOK or any(t.untyped_storage()._cdata in storages for t in touched):
            kept.append(call)
            storages |= {
                leaf.untyped_storage()._cdata for leaf in call.leaves if isinstance(leaf, Tensor)
            }
    return kept[::-1]
