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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.train.splitting import CannotSplitError
from ebbtide.train.splitting_program import Place as Location
from ebbtide.train.splitting_program import place_of

Nodes = list[Any]
Known = Sequence[Mapping[Location, Tensor]]
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


@dataclass(frozen=True, slots=True)
class Factor:
    """A number of the graph: what it is, or the tensor that holds it; NaN where it is unknown."""

    value: float | Tensor
    inverse: bool = False

    def number(self, known: Mapping[Location, Tensor]) -> float:
        """Its value, in a batch where tensors of the graph have the values `known`."""
        found = self.value
        if isinstance(found, Tensor):
            found = float(known.get(place_of(found), found))
        if not self.inverse:
            return found
        return 1 / found if found else math.inf

    @property
    def is_unknown(self) -> bool:
        """Whether it depends on parameters."""
        return isinstance(self.value, float) and math.isnan(self.value)


@dataclass(slots=True)
class Term:
    """One reduction over the batch, or what of the loss does not depend on the batch.

    Sequences are for the batch and then for each part.

    Attributes:
        kind: the node, as autograd calls it.
        path: which input to follow from the loss on, to get to the node.
        over_batch: False for what has the same inputs in the batch and in a part.
        elements: that are reduced.
        ways: each way down to the node, as the factors on it.
        inside: what the node divides by.
        coupled: a factor above depends on parameters.
        scalar: the node's output is one number.
    """

    kind: str
    path: tuple[int, ...]
    over_batch: bool
    elements: tuple[int, ...]
    ways: list[list[Way]]
    inside: list[Factor]
    coupled: bool
    scalar: bool

    def outside(self, known: Known = ()) -> list[float]:
        """The coefficient above the node."""
        return [
            sum(math.prod(factor.number(values) for factor in way) for way in ways)
            for ways, values in zip(self.ways, known or [{}] * len(self.ways), strict=True)
        ]

    def weights(self, known: Known = ()) -> list[float]:
        """By which each part's term counts in the batch; 0 where a part has nothing of it.

        For what does not depend on the batch: before it is shared among the parts.
        """
        divisors = [
            factor.number(values)
            for factor, values in zip(self.inside, known or [{}] * len(self.inside), strict=True)
        ]
        whole, *parts = (
            a / b if b else math.inf for a, b in zip(self.outside(known), divisors, strict=True)
        )
        return [_ratio(whole, part) for part in parts]


Way = tuple[Factor, ...]


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
    walk.node([loss.grad_fn for loss in losses], (), [()] * len(losses), False)
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

    def node(self, nodes: Nodes, path: tuple[int, ...], ways: list[Way], coupled: bool) -> None:
        """Find the terms below nodes that have the same shape in all graphs."""
        if not self._below_differs(nodes):
            self._term(nodes, path, None, ways, coupled)
            return
        inputs = _inputs(nodes)
        there = [i for i, places in enumerate(inputs) if places[0][0] is not None]
        differing = [i for i in there if _differ(inputs[i])]
        if differing:
            self._term(nodes, path, inputs[differing[0]], ways, coupled)
            return
        varying = [i for i in there if self._below_differs([node for node, _ in inputs[i]])]
        for i in there:
            if i not in varying and _name(nodes[0]) in ("Mul", "Div"):
                continue  # its gradient follows the values of the other input
            factors, unknown = _factors(nodes, i, varying, inputs)
            below = [(*way, factor) for way, factor in zip(ways, factors, strict=True)]
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
        ways: list[Way],
        coupled: bool,
    ) -> None:
        """Add what `nodes` reduce, or with no `reduced` what does not depend on the batch."""
        known = self.found.get(id(nodes[0]))
        if known is not None:
            for there, way in zip(known.ways, ways, strict=True):
                there.append(way)
            known.coupled |= coupled
            return
        elements, inside = (1,) * len(nodes), [Factor(1.0)] * len(nodes)
        outputs = math.prod(_own_shape(nodes[0]))
        if reduced is not None:
            _check_dimension(nodes[0], [_shape(place) for place in reduced])
            elements = tuple(math.prod(_shape(place)) for place in reduced)
            inside = [
                _divisor(node, count, outputs) for node, count in zip(nodes, elements, strict=True)
            ]
        self.found[id(nodes[0])] = Term(
            kind=nodes[0].name(),
            path=path,
            over_batch=reduced is not None,
            elements=elements,
            ways=[[way] for way in ways],
            inside=inside,
            coupled=coupled,
            scalar=outputs == 1,
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


def _divisor(node: Any, elements: int, outputs: int) -> Factor:
    """What a reduction divides its sum by."""
    name = _name(node)
    if name in _SUMS:
        return Factor(1.0)
    if name == "Mean":
        return Factor(elements / max(1, outputs))
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == _SUM:
        return Factor(1.0)
    if reduction == _MEAN and name in _ELEMENTWISE:
        return Factor(float(elements))
    if reduction == _MEAN and name in _NLL:
        return _number(node._saved_total_weight)
    raise CannotSplitError(
        f"The loss reduces the batch by {node.name()}, which is not a sum or a mean over samples, "
        "or not known to be one. Leave micro-batching out of the plan."
    )


def _factors(
    nodes: Nodes, index: int, varying: list[int], inputs: list[list[Place]]
) -> tuple[list[Factor], bool]:
    """The coefficients of an input of nodes above the reductions; whether one is unknown."""
    name, count = _name(nodes[0]), len(nodes)
    same = [Factor(1.0)] * count
    if name == "Mean":
        share = math.prod(_own_shape(nodes[0])) / max(1, math.prod(_shape(inputs[0][0])))
        return [Factor(share)] * count, False
    if index == _SCALED.get(name):
        sign = 1 if name == "Add" else -1
        return [Factor(sign * float(node._saved_alpha)) for node in nodes], False
    if name in _SAME:
        return ([Factor(-1.0)] * count if name == "Neg" else same), False
    if name not in ("Mul", "Div") or len(varying) != 1 or (name == "Div" and varying != [0]):
        raise _not_linear(nodes[0])
    others = [getattr(n, "_saved_other" if varying == [0] else "_saved_self") for n in nodes]
    found = [_number(other, inverse=name == "Div") for other in others]
    if any(factor.is_unknown for factor in found):
        place = 1 - varying[0]
        if place < len(inputs) and inputs[place][0][0] is not None:
            return same, True  # of parameters alone, so the same in all
        if all(_same(others[0], other) for other in others[1:]):
            return same, False
        return [Factor(math.nan)] * count, False
    return found, False


def _not_linear(node: Any) -> CannotSplitError:
    return CannotSplitError(
        f"The loss mixes samples: {node.name()} is applied to what has been summed over the "
        "batch, and is not linear in it. Leave micro-batching out of the plan."
    )


def _number(value: Any, inverse: bool = False) -> Factor:
    """A saved factor; NaN where it has no value or is not one number."""
    if not isinstance(value, Tensor):
        return Factor(float(value), inverse)
    if isinstance(value, FakeTensor) or value.requires_grad or value.numel() != 1:
        return Factor(math.nan)
    return Factor(value.detach(), inverse)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):
        return False
    return torch.equal(a, b)
