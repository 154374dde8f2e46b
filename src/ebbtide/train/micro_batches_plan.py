"""Find what each micro-batch of a batch counts, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ebbtide.train.splitting import CannotSplitError, batch_size, part_sizes, split_batch
from ebbtide.train.splitting_hollow import Hollow, hollow_loss, unobserved
from ebbtide.train.splitting_program import Place, Program
from ebbtide.train.splitting_terms import Term, terms

Objective = Callable[[Any], Tensor]
_KEPT = 8  # graphs for one shape: as many ways through the code
_CLOSE = 1e-6  # of counts in float32 that are compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """One term of a part's loss.

    Attributes:
        path: which input to follow from the loss on, to get to its node.
        weight: by which it counts in the batch.
    """

    path: tuple[int, ...]
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One micro-batch and what it counts.

    Attributes:
        batch: the samples.
        share: its share of the samples.
        weight: of its loss in the loss of the batch, where one number says it; None else.
        terms: those of its loss, where `weight` is None.
    """

    batch: Any
    share: float
    weight: float | None
    terms: tuple[Weighted, ...] = ()


@dataclass(frozen=True, slots=True)
class _Graph:
    """The loss of one batch without values, and how to get its numbers for another one."""

    loss: Tensor
    program: Program
    repeatable: bool


class Reader:
    """Finds what the parts of batches count, and keeps what it read from batches before.

    A batch of shapes that are known, in which Python saw the same numbers, needs no pass
    through the model.

    Args:
        objective: the loss of one batch, with the model bound.
        parameters: all parameters of the model, frozen ones too.
        parts: how many micro-batches.
        dim: the batch dimension.
        allow_random: split although dropout will draw other bits.
    """

    def __init__(
        self,
        objective: Objective,
        parameters: Iterable[Tensor],
        parts: int,
        *,
        dim: int = 0,
        allow_random: bool = False,
    ) -> None:
        self.objective, self.parameters = objective, list(parameters)
        self.count, self.dim, self.allow_random = parts, dim, allow_random
        self._graphs: dict[Any, list[_Graph]] = {}

    def parts(self, batch: Any) -> list[Part]:
        """The parts of `batch`.

        Raises:
            CannotSplitError: with the reason; nothing has been changed.
        """
        sizes = part_sizes(batch_size(batch, self.dim), self.count)
        with unobserved():
            batches = split_batch(batch, self.count, self.dim)
            read = [self._read(each) for each in (batch, *batches)]
            found = terms([graph.loss for graph, _ in read])
            _check(found, self.count)
            figures = [_Figures(term, [known for _, known in read]) for term in found]
        _check_figures(figures, self.count)
        return [
            _part(number, batches[number], size / sum(sizes), figures)
            for number, size in enumerate(sizes)
        ]

    def _read(self, batch: Any) -> tuple[_Graph, Mapping[Place, Tensor]]:
        """The graph of `batch`, and the values of numbers in it."""
        key = _shapes(batch)
        for graph in self._graphs.get(key, ()):
            known = graph.program.run(batch)
            if known is not None:
                return graph, known
        loss, seen = hollow_loss(self.objective, self.parameters, batch)
        _refuse(seen, self.allow_random, self.count)
        program = Program(seen.calls, batch)
        repeatable = key is not None and not seen.by_value and program.repeatable()
        graph = _Graph(loss, program, repeatable)
        if repeatable:
            kept = self._graphs.setdefault(key, [])
            kept.append(graph)
            del kept[:-_KEPT]
        return graph, {}


def _shapes(batch: Any) -> Any:
    """What a batch of tensors looks like; None where something else may matter."""
    leaves, spec = pytree.tree_flatten(batch)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    return str(spec), tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)


class _Figures:
    """A term with the figures of one batch."""

    def __init__(self, term: Term, known: list[Mapping[Place, Tensor]]) -> None:
        self.term = term
        self.weights = term.weights(known)


def plan_parts(
    objective: Objective,
    parameters: Iterable[Tensor],
    batch: Any,
    parts: int,
    *,
    dim: int = 0,
    allow_random: bool = False,
) -> list[Part]:
    """Split `batch` and find what each part's loss counts; arguments as of `Reader`.

    On a virtual GPU the parts are those of `share_parts`.

    Raises:
        CannotSplitError: with the reason; nothing has been changed.
    """
    parameters = list(parameters)
    if parts == 1 or any(isinstance(p, FakeTensor) for p in parameters):
        return share_parts(batch, parts, dim=dim)
    reader = Reader(objective, parameters, parts, dim=dim, allow_random=allow_random)
    return reader.parts(batch)


def share_parts(batch: Any, parts: int, *, dim: int = 0) -> list[Part]:
    """Split `batch` and let each part count its share of the samples.

    Exact for a mean over samples alone, and good enough on a virtual GPU, where labels have no
    values and the memory is the same.
    """
    size = batch_size(batch, dim)
    if parts == 1:
        return [Part(batch=batch, share=1.0, weight=1.0)]
    batches = split_batch(batch, parts, dim, size)
    return [
        Part(batch=each, share=count / size, weight=count / size)
        for each, count in zip(batches, part_sizes(size, parts), strict=True)
    ]


def _refuse(seen: Hollow, allow_random: bool, parts: int) -> None:
    """Refuse what a split would change, from what one pass was seen to do."""
    if seen.norms:
        raise CannotSplitError(
            f"{len(seen.norms)} batch norm(s) in training normalise over the whole batch (first: "
            f"input {seen.norms[0]}); in {parts} parts they would see other means. Use "
            ".eval() or group norm, or leave micro-batching out of the plan."
        )
    if seen.writes:
        raise CannotSplitError(
            f"A forward pass writes {len(seen.writes)} time(s) to tensors that stay (first: shape "
            f"{seen.writes[0]}); {parts} parts would write {parts} times as often. Leave "
            "micro-batching out of the plan."
        )
    if seen.random and not allow_random:
        drawn = ", ".join(f"{name} {count} x" for name, count in seen.random.items())
        raise CannotSplitError(
            f"The forward pass draws random numbers ({drawn}); {parts} parts would draw others. "
            "Allow it, set dropout to 0, or leave micro-batching out of the plan."
        )


def _check(found: list[Term], parts: int) -> None:
    """The terms of the parts have to make up those of the batch."""
    if not any(term.over_batch for term in found):
        raise CannotSplitError(
            "The loss does not depend on the batch: nothing that it reduces gets smaller with "
            "fewer samples. Leave micro-batching out of the plan."
        )
    for term in found:
        whole, summed = term.elements[0], sum(term.elements[1:])
        if term.over_batch and whole != summed:
            raise CannotSplitError(
                f"The loss mixes samples: {term.kind} reduces {whole} elements for the batch "
                f"and {summed} for its {parts} parts together. Leave micro-batching out of "
                "the plan."
            )


def _check_figures(found: list[_Figures], parts: int) -> None:
    for each in found:
        if any(map(math.isnan, each.weights)):
            raise CannotSplitError(
                f"What the sum over samples of {each.term.kind} is multiplied or divided by "
                "depends on the parameters and the batch, or is not one number, so what each of "
                f"{parts} parts counts cannot be found. Leave micro-batching out of the plan."
            )


def _part(number: int, batch: Any, share: float, found: list[_Figures]) -> Part:
    weights = [each.weights[number] for each in found if each.term.over_batch]
    fixed = [each.weights[number] for each in found if not each.term.over_batch]
    coupled = any(each.term.coupled for each in found)
    alike = all(_close(w, weights[0]) for w in weights)
    # What is there once has to be counted once, which shares of samples do.
    once = _close(weights[0], share) and all(_close(w, 1) for w in fixed)
    if alike and (once or not (fixed or coupled)):
        return Part(batch=batch, share=share, weight=weights[0])
    if coupled:
        raise CannotSplitError(
            "A factor of the loss depends on the parameters, and the terms of the loss count "
            f"differently in the parts: {[round(w, 4) for w in weights]} for {share:.4f} of the "
            "samples. Leave micro-batching out of the plan."
        )
    weighted = []
    for each in found:
        term = each.term
        if not term.scalar or term.kind.endswith("AccumulateGrad"):
            raise CannotSplitError(
                f"The terms of the loss count differently in the parts, and {term.kind} is not a "
                "reduction to one number that can be weighted by itself. Reduce it with sum()."
            )
        weight = each.weights[number] * (1 if term.over_batch else share)
        weighted.append(Weighted(path=term.path, weight=weight))
    return Part(batch=batch, share=share, weight=None, terms=tuple(weighted))


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_CLOSE)
