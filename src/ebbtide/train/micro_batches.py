"""Run a step in micro-batches whose gradients add up to those of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide.train.splitting import CannotSplitError, batch_size, part_sizes, split_batch
from ebbtide.train.splitting_hollow import Hollow, hollow_loss, unobserved
from ebbtide.train.splitting_terms import Term, node_at, terms

Objective = Callable[[Any], Tensor]
_CLOSE = 1e-6  # of counts in float32 that are compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """One term of a part's loss.

    Attributes:
        path: which input to follow from the loss on, to get to its node.
        weight: by which it counts in the batch.
        factor: of the node's output in the loss.
    """

    path: tuple[int, ...]
    weight: float
    factor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One micro-batch and what it counts.

    Attributes:
        batch: the samples.
        share: its share of the samples.
        weight: of its loss in the loss of the batch, where one number says it; None else.
        terms: those of its loss, where `weight` is None.
        by_value: all this may be other in a batch of the same shapes.
    """

    batch: Any
    share: float
    weight: float | None
    terms: tuple[Weighted, ...] = ()
    by_value: bool = True


def plan_parts(
    objective: Objective,
    parameters: Iterable[Tensor],
    batch: Any,
    parts: int,
    *,
    dim: int = 0,
    allow_random: bool = False,
) -> list[Part]:
    """Split `batch` and find what each part's loss counts, without computing anything.

    Args:
        objective: the loss of one batch, with the model bound.
        parameters: all parameters of the model, frozen ones too.
        batch: any nesting of tensors.
        parts: how many micro-batches.
        dim: the batch dimension.
        allow_random: split although dropout will draw other bits.

    On a virtual GPU the parts are those of `share_parts`.

    Raises:
        CannotSplitError: with the reason; nothing has been changed.
    """
    parameters = list(parameters)
    if parts == 1 or any(isinstance(p, FakeTensor) for p in parameters):
        return share_parts(batch, parts, dim=dim)
    size = batch_size(batch, dim)
    sizes = part_sizes(size, parts)
    whole, seen = hollow_loss(objective, parameters, batch)
    refuse(seen, allow_random, parts)
    with unobserved():
        batches = split_batch(batch, parts, dim, size)
        hollow = (hollow_loss(objective, parameters, each)[0] for each in batches)
        found = terms([whole, *hollow])
    _check(found, parts)
    return [
        _part(number, batches[number], count / size, found) for number, count in enumerate(sizes)
    ]


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


def run_parts(
    objective: Objective,
    parts: Sequence[Part],
    *,
    backward: Callable[[Tensor], None] = torch.Tensor.backward,
    hold: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Tensor:
    """Run forward and backward of each part; gradients add up to those of the whole batch.

    Args:
        objective: the loss of one batch.
        parts: from `plan_parts`.
        backward: takes the weighted loss of a part; for GradScaler
            ``lambda loss: scaler.scale(loss).backward()``.
        hold: a context for all but the last part, as `OptimizerInBackward.hold`.

    Returns:
        The loss of the whole batch, without a graph.
    """
    total: Tensor | None = None
    for number, part in enumerate(parts):
        with hold() if number + 1 < len(parts) else nullcontext():
            value = _run(objective, part, backward)
        total = value if total is None else total + value
    if total is None:
        raise CannotSplitError("There are no parts to run. Give at least one.")
    return total


def refuse(seen: Hollow, allow_random: bool, parts: int) -> None:
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
                f"The loss mixes samples: {term.kind} reduces {whole:.0f} elements for the batch "
                f"and {summed:.0f} for its {parts} parts together. Leave micro-batching out of "
                "the plan."
            )
        if any(map(math.isnan, term.weights())):
            raise CannotSplitError(
                f"What the sum over samples of {term.kind} is multiplied or divided by depends on "
                "the parameters and the batch, or is not one number, so what each of "
                f"{parts} parts counts cannot be found. Leave micro-batching out of the plan."
            )


def _part(number: int, batch: Any, share: float, found: list[Term]) -> Part:
    weights = [term.weights()[number] for term in found if term.over_batch]
    fixed = [term.weights()[number] for term in found if not term.over_batch]
    coupled = any(term.coupled for term in found)
    alike = all(_close(w, weights[0]) for w in weights)
    # What is there once has to be counted once, which shares of samples do.
    once = _close(weights[0], share) and all(_close(w, 1) for w in fixed)
    if alike and (once or not (fixed or coupled)):
        by_value = any(term.by_value for term in found)
        return Part(batch=batch, share=share, weight=weights[0], by_value=by_value)
    if coupled:
        raise CannotSplitError(
            "A factor of the loss depends on the parameters, and the terms of the loss count "
            f"differently in the parts: {[round(w, 4) for w in weights]} for {share:.4f} of the "
            "samples. Leave micro-batching out of the plan."
        )
    weighted = []
    for term in found:
        if not term.scalar or term.kind.endswith("AccumulateGrad"):
            raise CannotSplitError(
                f"The terms of the loss count differently in the parts, and {term.kind} is not a "
                "reduction to one number that can be weighted by itself. Reduce it with sum()."
            )
        weight = term.weights()[number] * (1 if term.over_batch else share)
        weighted.append(Weighted(path=term.path, weight=weight, factor=term.outside[1 + number]))
    return Part(batch=batch, share=share, weight=None, terms=tuple(weighted))


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_CLOSE)


def _run(objective: Objective, part: Part, backward: Callable[[Tensor], None]) -> Tensor:
    if part.weight is not None:
        loss = objective(part.batch)
        if part.weight == 1:
            backward(loss)
            return loss.detach()
        if part.weight == 0:
            return torch.zeros_like(loss.detach())
        weighted = loss * part.weight
        backward(weighted)
        return weighted.detach()
    with _Numbers() as numbers:
        loss = objective(part.batch)
    value = weigh(loss, part, numbers.found)
    backward(loss)
    return value


def weigh(loss: Tensor, part: Part, numbers: list[Tensor]) -> Tensor:
    """Weight the terms of `loss` in its backward pass, and in what is returned.

    Args:
        loss: of `part`.
        part: has terms.
        numbers: what of the forward pass is one number.
    """
    made = {number.grad_fn: number.detach() for number in numbers if number.grad_fn is not None}
    total = torch.zeros_like(loss.detach())
    rest = loss.detach().clone()
    for term in part.terms:
        node = node_at(loss, term.path)
        node.register_prehook(_weighting(term.weight))
        value = made[node].reshape(loss.shape) * term.factor
        rest = rest - value
        if term.weight:
            total = total + value * term.weight
    # What no gradient goes through: constants.
    return total + rest.nan_to_num() * part.share


def _weighting(weight: float) -> Callable[[Any], Any]:
    def hook(gradients: Any) -> Any:
        return tuple(
            g if g is None else (torch.zeros_like(g) if weight == 0 else g * weight)
            for g in gradients
        )

    return hook


class _Numbers(TorchDispatchMode):
    """Keeps what operations return that is one number: the values of the terms of a loss."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) and result else result
        if isinstance(first, Tensor) and first.numel() == 1:
            self.found.append(first)
        return result
