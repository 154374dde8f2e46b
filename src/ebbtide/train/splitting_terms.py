"""What a loss reduces over the batch, read from its autograd graph.

The graphs of one objective, for a batch and for the parts of it, are walked side by side from
the loss down. Where a node has the same shape in all and its inputs have not, the batch is
reduced: a sum, or a sum divided by something. All above it has to be linear. Each such *term*
is a coefficient times a sum over samples, and the ratio of the batch's coefficient to a part's
is what the part's term has to be weighted with, whether the loss is a mean over samples or
valid tokens, a sum, or several of them added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.train.splitting import CannotSplitError

Figures = tuple[float, ...]
Nodes = list[Any]
Place = tuple[Any, int]  # a node and which of its outputs
_MEAN, _SUM = 1, 2  # ATen/core/Reduction.h
_SAME = {
    "Alias", "AsStrided", "Cat", "Clone", "CopyBackwards", "Expand", "Neg", "Permute", "Reshape",
    "ReshapeAlias", "Rsub", "Select", "Slice", "Squeeze", "Stack", "Sub", "Add", "Sum", "T",
    "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View",
}  # fmt: skip
"""Nodes that are linear in their inputs, each with a coefficient of one in size."""
_SCALED = {"Add": 1, "Sub": 1, "Rsub": 0}
"""Nodes with an `alpha`, and the input that it goes to."""
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

    Tuples hold the figure for the batch and then that for each part.

    Attributes:
        kind: the node, as autograd calls it.
        path: which input to follow from the loss on, to get to the node.
        over_batch: False for what has the same inputs in the batch and in a part.
        elements: that are reduced.
        outside: coefficients above the node.
        inside: what the node divides by; NaN where it depends on parameters.
        coupled: a factor above depends on parameters.
        scalar: the node's output is one number.
        by_value: its figures may be others in a batch of the same shapes.
    """

    kind: str
    path: tuple[int, ...]
    over_batch: bool
    elements: Figures
    outside: Figures
    inside: Figures
    coupled: bool
    scalar: bool
    by_value: bool

    def weights(self) -> list[float]:
        """By which each part's term counts in the batch; 0 where a part has nothing of it.

        For what does not depend on the batch: before it is shared among the parts.
        """
        whole, *parts = (
            a / b if b else math.inf for a, b in zip(self.outside, self.inside, strict=True)
        )
        return [_ratio(whole, part) for part in parts]


def _ratio(whole: float, part: float) -> float:
    if math.isinf(part) or (whole == 0 and part == 0):
        return 0.0
    return whole / part if part else math.nan


def terms(losses: Sequence[Tensor]) -> list[Term]:
    """The terms of a loss, from its graph for the batch and then that for each part.

    Raises:
        CannotSplitError: samples are mixed, or a node is not known to be linear.
    """
    for loss, what in zip(losses, ("the batch", "a part of it"), strict=False):
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
    walk.node([loss.grad_fn for loss in losses], (), (1.0,) * len(losses), False)
    return list(walk.found.values())


def node_at(loss: Tensor, path: tuple[int, ...]) -> Any:
    """The node of the graph of `loss` at `path`."""
    node: Any = loss.grad_fn
    for index in path:
        node = node.next_functions[index][0]
    return node


class _Walk:
    """Goes down the graphs of the batch and of its parts, which have to be alike."""

    def __init__(self) -> None:
        self.found: dict[int, Term] = {}
        self._varies: dict[int, bool] = {}
        self._held: list[Any] = []  # nodes, so that no other takes their id

    def node(self, nodes: Nodes, path: tuple[int, ...], k: Figures, coupled: bool) -> None:
        """Find the terms below nodes that have the same shape in all graphs."""
        if not self._below_differs(nodes):
            self._term(nodes, path, None, k, coupled)
            return
        inputs = _inputs(nodes)
        there = [i for i, places in enumerate(inputs) if places[0][0] is not None]
        differing = [i for i in there if _differ(inputs[i])]
        if differing:
            self._term(nodes, path, inputs[differing[0]], k, coupled)
            return
        varying = [i for i in there if self._below_differs([node for node, _ in inputs[i]])]
        for i in there:
            if i not in varying and _name(nodes[0]) in ("Mul", "Div"):
                continue  # its gradient follows the values of the other input
            factors, unknown = _factors(nodes, i, varying, inputs)
            below = tuple(a * b for a, b in zip(k, factors, strict=True))
            self.node([node for node, _ in inputs[i]], (*path, i), below, coupled or unknown)

    def _below_differs(self, nodes: Nodes) -> bool:
        """Whether shapes differ anywhere below."""
        known = self._varies.get(id(nodes[0]))
        if known is not None:
            return known
        seen, waiting, result = {id(nodes[0])}, [nodes], False
        self._held.append(nodes)
        while waiting and not result:
            for places in _inputs(waiting.pop()):
                first = places[0][0]
                if first is not None and id(first) not in seen:
                    seen.add(id(first))
                    self._held.append(first)
                    result |= _differ(places)
                    waiting.append([node for node, _ in places])
        self._varies[id(nodes[0])] = result
        return result

    def _term(
        self,
        nodes: Nodes,
        path: tuple[int, ...],
        reduced: list[Place] | None,
        k: Figures,
        coupled: bool,
    ) -> None:
        """Add what `nodes` reduce, or with no `reduced` what does not depend on the batch."""
        known = self.found.get(id(nodes[0]))
        if known is not None:
            known.outside = tuple(a + b for a, b in zip(known.outside, k, strict=True))
            known.coupled |= coupled
            known.by_value |= len(set(k)) > 1
            return
        elements = inside = (1.0,) * len(nodes)
        outputs = math.prod(_own_shape(nodes[0]))
        if reduced is not None:
            _check_dimension(nodes[0], [_shape(place) for place in reduced])
            elements = tuple(float(math.prod(_shape(place))) for place in reduced)
            inside = tuple(
                _divisor(node, count, outputs) for node, count in zip(nodes, elements, strict=True)
            )
        self.found[id(nodes[0])] = Term(
            kind=nodes[0].name(),
            path=path,
            over_batch=reduced is not None,
            elements=elements,
            outside=k,
            inside=inside,
            coupled=coupled,
            scalar=outputs == 1,
            by_value=len(set(k)) > 1 or _name(nodes[0]) in _NLL,
        )


def _inputs(nodes: Nodes) -> list[list[Place]]:
    """Of each input of `nodes`, where it comes from in each graph."""
    first = nodes[0]
    for other in nodes[1:]:
        if first.name() != other.name() or len(first.next_functions) != len(other.next_functions):
            raise CannotSplitError(
                "The objective computes something else for a part than for the batch: "
                f"{first.name()} with {len(first.next_functions)} inputs here, {other.name()} "
                f"with {len(other.next_functions)} there. Leave micro-batching out of the plan."
            )
    return [list(places) for places in zip(*(node.next_functions for node in nodes), strict=True)]


def _differ(places: list[Place]) -> bool:
    whole = _shape(places[0])
    return any(_shape(place) != whole for place in places[1:])


def _check_dimension(node: Any, shapes: list[tuple[int, ...]]) -> None:
    """The batch is in one dimension of what is reduced."""
    whole = shapes[0]
    odd: set[int] = set()
    for shape in shapes[1:]:
        odd |= {i for i, (a, b) in enumerate(zip(whole, shape, strict=False)) if a != b}
    if len({len(shape) for shape in shapes}) != 1 or len(odd) != 1:
        raise CannotSplitError(
            f"The loss mixes samples: {node.name()} reduces {whole} for the batch and "
            f"{shapes[-1]} for a part, which differ in {len(odd)} dimensions, as where all samples "
            "are compared with each other. Leave micro-batching out of the plan."
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


def _divisor(node: Any, elements: float, outputs: int) -> float:
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
        return elements
    if reduction == _MEAN and name in _NLL:
        return _number(node._saved_total_weight)
    raise CannotSplitError(
        f"The loss reduces the batch by {node.name()}, which is not a sum or a mean over samples, "
        "or not known to be one. Leave micro-batching out of the plan."
    )


def _factors(
    nodes: Nodes, index: int, varying: list[int], inputs: list[list[Place]]
) -> tuple[Figures, bool]:
    """The coefficients of an input of nodes above the reductions; whether one is unknown."""
    name, same = _name(nodes[0]), (1.0,) * len(nodes)
    if name == "Mean":
        share = math.prod(_own_shape(nodes[0])) / max(1, math.prod(_shape(inputs[0][0])))
        return (share,) * len(nodes), False
    if index == _SCALED.get(name):
        sign = 1 if name == "Add" else -1
        return tuple(sign * float(node._saved_alpha) for node in nodes), False
    if name in _SAME:
        return ((-1.0,) * len(nodes) if name == "Neg" else same), False
    if name not in ("Mul", "Div") or len(varying) != 1 or (name == "Div" and varying != [0]):
        raise _not_linear(nodes[0])
    others = [getattr(n, "_saved_other" if varying == [0] else "_saved_self") for n in nodes]
    found = tuple(map(_number, others))
    if any(map(math.isnan, found)):
        place = 1 - varying[0]
        if place < len(inputs) and inputs[place][0][0] is not None:
            return same, True  # of parameters alone, so the same in all
        if all(_same(others[0], other) for other in others[1:]):
            return same, False
        return (math.nan,) * len(nodes), False
    if name == "Div":
        return tuple(1 / each if each else math.inf for each in found), False
    return found, False


def _not_linear(node: Any) -> CannotSplitError:
    return CannotSplitError(
        f"The loss mixes samples: {node.name()} is applied to what has been summed over the "
        "batch, and is not linear in it. Leave micro-batching out of the plan."
    )


def _number(value: Any) -> float:
    """A saved factor; NaN where it has no value or is not one number."""
    if not isinstance(value, Tensor):
        return float(value)
    if isinstance(value, FakeTensor) or value.requires_grad or value.numel() != 1:
        return math.nan
    return float(value)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):
        return False
    return torch.equal(a, b)
