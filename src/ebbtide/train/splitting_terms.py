"""What a loss reduces over the batch, read from its autograd graph.

Two graphs of one objective, for a batch and for a part of it, are walked side by side from
the loss down. Where a node has the same shape in both and its inputs have not, the batch is
reduced: a sum, or a sum divided by something. All above it has to be linear. Each such *term*
is a coefficient times a sum over samples, and the ratio of the two coefficients is what the
part's term has to be weighted with, whether the loss is a mean over samples or valid tokens,
a sum, or several of them added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.train.splitting import CannotSplitError

_MEAN, _SUM = 1, 2  # ATen/core/Reduction.h
_SAME = {
    "Alias", "AsStrided", "Cat", "Clone", "CopyBackwards", "Expand", "Neg", "Permute", "Reshape",
    "ReshapeAlias", "Select", "Slice", "Squeeze", "Stack", "Sub", "Add", "Sum", "T", "ToCopy",
    "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View",
}  # fmt: skip
"""Nodes that are linear in their inputs, each with a coefficient of one in size."""
_SUMS = {"Sum", "Dot", "Mv", "Mm"}
_ELEMENTWISE = {
    "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "HuberLoss", "L1Loss", "MseLoss",
    "MultiMarginLoss", "MultilabelMarginLoss", "SmoothL1Loss", "SoftMarginLoss",
}  # fmt: skip
"""Losses whose mean is over all elements (or rows, which are as many times more)."""
_NLL = {"NllLoss", "NllLoss2D"}


@dataclass(slots=True)
class Term:
    """One reduction over the batch, or what of the loss does not depend on the batch.

    Attributes:
        kind: the node, as autograd calls it.
        path: which input to follow from the loss on, to get to the node.
        over_batch: False for what has the same inputs in the batch and in a part.
        elements: reduced in the batch and in the part.
        outside: coefficients above the node, in the batch and in the part.
        inside: what the node divides by, in the batch and in the part; NaN if unknown.
        coupled: a factor above depends on parameters.
        scalar: the node's output is one number.
    """

    kind: str
    path: tuple[int, ...]
    over_batch: bool
    elements: tuple[int, int]
    outside: tuple[float, float]
    inside: tuple[float, float]
    coupled: bool
    scalar: bool

    def weight(self) -> float:
        """By which the part's term counts in the batch; 0 where nothing of it is in the part.

        For what does not depend on the batch: before it is shared among the parts.
        """
        batch, part = (a / b if b else math.inf for a, b in zip(self.outside, self.inside, strict=True))
        if math.isinf(part) or (part == 0 and batch == 0):
            return 0.0
        return batch / part if part else math.nan


def terms(batch_loss: Tensor, part_loss: Tensor) -> list[Term]:
    """The terms of a loss, from its graphs for a batch and for a part.

    Raises:
        CannotSplitError: samples are mixed, or a node is not known to be linear.
    """
    for loss, what in ((batch_loss, "the batch"), (part_loss, "a part of it")):
        if loss.numel() != 1:
            raise CannotSplitError(
                f"The objective gives a tensor of shape {tuple(loss.shape)} for {what}, not one "
                "number. Reduce the loss to one number."
            )
        if loss.grad_fn is None:
            raise CannotSplitError(
                "The loss does not depend on anything that requires a gradient. Train at least "
                "one parameter."
            )
    walk = _Walk()
    walk.node(batch_loss.grad_fn, part_loss.grad_fn, (), (1.0, 1.0), False)
    return list(walk.found.values())


def node_at(loss: Tensor, path: tuple[int, ...]) -> Any:
    """The node of the graph of `loss` at `path`."""
    node: Any = loss.grad_fn
    for index in path:
        node = node.next_functions[index][0]
    return node


class _Walk:
    def __init__(self) -> None:
        self.found: dict[int, Term] = {}
        self._varies: dict[int, bool] = {}
        self._held: list[Any] = []  # nodes, so that no other takes their id

    def node(
        self, batch: Any, part: Any, path: tuple[int, ...], k: tuple[float, float], coupled: bool
    ) -> None:
        """Find the terms below a pair of nodes of the same shape."""
        if not self.varies(batch, part):
            self._term(batch, part, path, False, k, (1.0, 1.0), (1, 1), coupled)
            return
        pairs = self._inputs(batch, part)
        varying = [i for i, (b, p) in enumerate(pairs) if b[0] is not None and self._differs(b, p)]
        differing = [i for i in varying if _shape(pairs[i][0]) != _shape(pairs[i][1])]
        if differing:
            self._reduction(batch, part, path, k, coupled, differing)
            return
        for i, (b, p) in enumerate(pairs):
            if b[0] is None:
                continue
            factor, unknown = _factor(batch, part, i, varying, pairs)
            below = (k[0] * factor[0], k[1] * factor[1])
            if i not in varying and _name(batch) in ("Mul", "Div"):
                continue  # its gradient follows the values of the other input
            self.node(b[0], p[0], (*path, i), below, coupled or unknown)

    def varies(self, batch: Any, part: Any) -> bool:
        """Whether shapes differ anywhere below two nodes."""
        known = self._varies.get(id(batch))
        if known is not None:
            return known
        self._held.append(batch)
        seen, waiting, result = {id(batch)}, [(batch, part)], False
        while waiting and not result:
            b, p = waiting.pop()
            for x, y in self._inputs(b, p):
                if x[0] is None or id(x[0]) in seen:
                    continue
                seen.add(id(x[0]))
                self._held.append(x[0])
                if _shape(x) != _shape(y):
                    result = True
                waiting.append((x[0], y[0]))
        self._varies[id(batch)] = result
        return result

    def _differs(self, batch: tuple[Any, int], part: tuple[Any, int]) -> bool:
        return _shape(batch) != _shape(part) or self.varies(batch[0], part[0])

    def _inputs(self, batch: Any, part: Any) -> list[tuple[tuple[Any, int], tuple[Any, int]]]:
        b, p = batch.next_functions, part.next_functions
        if batch.name() != part.name() or len(b) != len(p):
            raise CannotSplitError(
                "The objective computes something else for a part than for the batch: "
                f"{batch.name()} with {len(b)} inputs here, {part.name()} with {len(p)} there. "
                "Leave micro-batching out of the plan."
            )
        return list(zip(b, p, strict=True))

    def _reduction(
        self,
        batch: Any,
        part: Any,
        path: tuple[int, ...],
        k: tuple[float, float],
        coupled: bool,
        differing: list[int],
    ) -> None:
        shapes = [
            (_shape(batch.next_functions[i]), _shape(part.next_functions[i])) for i in differing
        ]
        full, small = shapes[0]
        odd = [i for i, (a, b) in enumerate(zip(full, small, strict=False)) if a != b]
        if len(full) != len(small) or len(odd) != 1:
            raise CannotSplitError(
                f"The loss mixes samples: {batch.name()} reduces {full} for the batch and {small} "
                f"for a part, which differ in {len(odd)} dimensions, as where all samples are "
                "compared with each other. Leave micro-batching out of the plan."
            )
        elements = (math.prod(full), math.prod(small))
        inside = tuple(
            _divisor(node, count, math.prod(_own_shape(node)))
            for node, count in zip((batch, part), elements, strict=True)
        )
        self._term(batch, part, path, True, k, inside, elements, coupled)

    def _term(
        self,
        batch: Any,
        part: Any,
        path: tuple[int, ...],
        over_batch: bool,
        k: tuple[float, float],
        inside: Any,
        elements: tuple[int, int],
        coupled: bool,
    ) -> None:
        known = self.found.get(id(batch))
        if known is not None:
            known.outside = (known.outside[0] + k[0], known.outside[1] + k[1])
            known.coupled |= coupled
            return
        self._held.append(batch)
        self.found[id(batch)] = Term(
            kind=batch.name(),
            path=path,
            over_batch=over_batch,
            elements=elements,
            outside=k,
            inside=inside,
            coupled=coupled,
            scalar=math.prod(_own_shape(batch)) == 1,
        )


def _name(node: Any) -> str:
    """`MulBackward0` as `Mul`."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _own_shape(node: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in node._input_metadata[0].shape)


def _shape(place: tuple[Any, int]) -> tuple[int, ...]:
    """Of an input of a node."""
    node, index = place
    if node is None:
        return ()
    return tuple(int(size) for size in node._input_metadata[index].shape)


def _divisor(node: Any, elements: int, outputs: int) -> float:
    """What a reduction divides its sum by; NaN if that depends on parameters."""
    name = _name(node)
    if name in _SUMS:
        return 1.0
    if name == "Mean":
        return elements / max(1, outputs)
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == _SUM:
        return 1.0
    if reduction == _MEAN and name in _ELEMENTWISE:
        return float(elements)
    if reduction == _MEAN and name in _NLL:
        return _number(node._saved_total_weight)
    raise CannotSplitError(
        f"The loss reduces the batch by {node.name()}, which is not a sum or a mean over samples, "
        "or not known to be one. Leave micro-batching out of the plan."
    )


def _factor(
    batch: Any, part: Any, index: int, varying: list[int], pairs: Any
) -> tuple[tuple[float, float], bool]:
    """The coefficients of an input of a node above the reductions; whether one is unknown."""
    name = _name(batch)
    if name == "Mean":
        share = math.prod(_own_shape(batch)) / max(1, math.prod(_shape(pairs[0][0])))
        return (share, share), False
    if name in ("Add", "Sub") and index == 1:
        sign = 1 if name == "Add" else -1
        return (sign * float(batch._saved_alpha), sign * float(part._saved_alpha)), False
    if name in _SAME:
        return ((-1.0, -1.0) if name == "Neg" else (1.0, 1.0)), False
    if name in ("Mul", "Div") and len(varying) == 1:
        if name == "Div" and varying != [0]:
            raise _not_linear(batch)
        other = "_saved_other" if varying == [0] else "_saved_self"
        found = [_number(getattr(node, other)) for node in (batch, part)]
        if math.isnan(found[0]) or math.isnan(found[1]):
            other_index = 1 - varying[0]
            if other_index < len(pairs) and pairs[other_index][0][0] is not None:
                return (1.0, 1.0), True  # of parameters alone, so the same in both
            if _same(getattr(batch, other), getattr(part, other)):
                return (1.0, 1.0), False
            return (math.nan, math.nan), False
        if name == "Div":
            found = [1 / each if each else math.inf for each in found]
        return (found[0], found[1]), False
    raise _not_linear(batch)


def _not_linear(node: Any) -> CannotSplitError:
    return CannotSplitError(
        f"The loss mixes samples: {node.name()} is applied to what has been summed over the "
        "batch, and is not linear in it. Leave micro-batching out of the plan."
    )


def _number(value: Any) -> float:
    """A saved factor; NaN where it has no value or is not one number."""
    if not isinstance(value, Tensor):
        return float(value)
    if isinstance(value, FakeTensor) or value.numel() != 1:
        return math.nan
    return float(value)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):
        return False
    return torch.equal(a, b)
