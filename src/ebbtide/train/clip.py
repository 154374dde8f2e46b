"""Clip by the norm of all gradients where the optimizer steps in backward.

The norm is known only when the last gradient is there, and by then the first ones are gone.
So the passes run twice: once for the norm, and once more, from the same random state and the
same buffers, to step with it. Bits are those of `torch.nn.utils.clip_grad_norm_` before a
plain step; the price is a second forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ebbtide.train.optimizer_in_backward import OptimizerInBackward
from ebbtide.train.optimizer_spent import SpentGradient
from ebbtide.train.optimizer_twin import OptimizerError
from ebbtide.train.splitting_hollow import generators_kept

_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_


def clipped_backward(
    in_backward: OptimizerInBackward,
    run: Callable[[], Tensor],
    max_norm: float,
    *,
    buffers: Iterable[Tensor] = (),
    norm_type: float = 2.0,
) -> tuple[Tensor, Tensor]:
    """Run the backward passes of one step with gradients clipped to `max_norm`.

    `optimizer.step()` comes after it as ever.

    Args:
        in_backward: an active context.
        run: forward and backward of all micro-batches of the step; returns the loss. It has to
            do the same when it is called a second time.
        max_norm: of all gradients together.
        buffers: of the model; what the first run changes in them is put back.
        norm_type: as in torch; `math.inf` for the largest element.

    Returns:
        The loss, and the norm before clipping.

    Raises:
        OptimizerError: gradients are there already, or `max_norm` is negative.
    """
    if max_norm < 0:
        raise OptimizerError(f"max_norm is {max_norm}; give a norm of 0 or more.")
    left = sum(p.grad is not None for p in in_backward.parameters())
    if left:
        raise OptimizerError(
            f"{left} gradients are there before the step, which its first run would lose. Call "
            "optimizer.zero_grad() first."
        )
    kept = [(buffer, buffer.clone()) for buffer in buffers]
    norm = _norm(in_backward, run, norm_type)
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
    # Multiplied in any case, as torch does, to spare a look at the value.
    factor = torch.clamp(max_norm / (norm + _EPSILON), max=1.0)

    def scale(parameter: Tensor) -> bool:
        if parameter.grad is not None:
            parameter.grad.detach().mul_(factor.to(parameter.grad.device))
        return True

    loss = _with_ready(in_backward, run, scale)
    for p in _left(in_backward):
        scale(p)  # had no gradient in the last pass: stepped by optimizer.step()
    return loss, norm


def _norm(in_backward: OptimizerInBackward, run: Callable[[], Tensor], norm_type: float) -> Tensor:
    norms: dict[int, Tensor] = {}

    def measure(parameter: Tensor) -> bool:
        if parameter.grad is not None:
            norms[id(parameter)] = torch.linalg.vector_norm(parameter.grad.detach(), norm_type)
        return False

    with generators_kept():
        _with_ready(in_backward, run, measure)
    for p in _left(in_backward):
        measure(p)
        p.grad = None
    ordered = [norms[id(p)] for p in in_backward.parameters() if id(p) in norms]
    if not ordered:
        return torch.zeros(())
    together = torch.stack([each.to(ordered[0].device) for each in ordered])
    total: Tensor = torch.linalg.vector_norm(together, norm_type)
    return total


def _left(in_backward: OptimizerInBackward) -> list[Tensor]:
    """Parameters whose gradients are there still."""
    return [
        p
        for p in in_backward.parameters()
        if p.grad is not None and not isinstance(p.grad, SpentGradient)
    ]


def _with_ready(
    in_backward: OptimizerInBackward,
    run: Callable[[], Tensor],
    ready: Callable[[Tensor], bool],
) -> Tensor:
    before, in_backward.ready = in_backward.ready, ready
    in_backward.begin()
    try:
        return run()
    finally:
        in_backward.ready = before
