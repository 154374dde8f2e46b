"""Run a step in micro-batches whose gradients add up to those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide.train.micro_batches_plan import Objective, Part
from ebbtide.train.splitting import CannotSplitError
from ebbtide.train.splitting_terms import node_at


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
    weighing = _Weighing(loss, part, numbers.found)
    backward(loss)
    return weighing.value()


class _Weighing:
    """Weights the terms of a loss in its backward pass, and then in its value.

    A term's node is told what the term counts in the loss, by its gradient over that of the
    loss; so factors need not be known before.

    Args:
        loss: of `part`.
        part: has terms.
        numbers: what of the forward pass is one number.
    """

    def __init__(self, loss: Tensor, part: Part, numbers: list[Tensor]) -> None:
        self.loss, self.part = loss.detach(), part
        made = {number.grad_fn: number.detach() for number in numbers if number.grad_fn}
        self._outer = torch.ones(())
        self._terms: list[tuple[Tensor, float, list[Tensor]]] = []
        loss.register_hook(self._begin)
        for term in part.terms:
            node = node_at(loss, term.path)
            gradients: list[Tensor] = []
            self._terms.append((made[node], term.weight, gradients))
            node.register_prehook(_weighting(term.weight, gradients))

    def _begin(self, gradient: Tensor) -> None:
        self._outer = gradient.detach()

    def value(self) -> Tensor:
        """What the part's loss counts in the loss of the batch, after backward."""
        total, rest = torch.zeros_like(self.loss), self.loss
        for number, weight, gradients in self._terms:
            for gradient in gradients:
                value = (number * gradient / self._outer).reshape(self.loss.shape)
                rest = rest - value
                if weight:
                    total = total + value * weight
        # What no gradient goes through: constants.
        return total + rest.nan_to_num() * self.part.share


def _weighting(weight: float, seen: list[Tensor]) -> Callable[[Any], Any]:
    def hook(gradients: Any) -> Any:
        seen.extend(g.detach() for g in gradients if g is not None)
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
