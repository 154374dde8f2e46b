"""Compare the gradients of a batch and of its parts on a few samples, by figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide.train.micro_batches import run_parts
from ebbtide.train.micro_batches_plan import Objective, plan_parts
from ebbtide.train.splitting import CannotSplitError, batch_size, part_sizes, take
from ebbtide.train.splitting_hollow import generators_kept, unobserved

_aten = torch.ops.aten
_EXACT = 1e-6
"""Relative error that a split may have in float64; models cast to float32 here and there."""
_ROUNDING = 64
"""Times the rounding of the dtype that a split may be off where float64 is not possible."""
_WINDOWS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitCheck:
    """How the gradients of a split batch compare with those of the whole.

    Relative errors: the norm of the difference of all gradients over the norm of all.

    Attributes:
        ok: the split is the same but for the order of sums.
        samples, parts: what was compared.
        change: of split against whole, in float64 where that is possible.
        loss_change: relative change of the loss.
        eager_error: of the whole batch in the model's dtype, against float64; None without.
        split_error: of the split batch likewise.
    """

    ok: bool
    samples: int
    parts: int
    change: float
    loss_change: float
    eager_error: float | None
    split_error: float | None

    def require(self) -> None:
        """Raise CannotSplitError unless the split is the same."""
        if not self.ok:
            raise CannotSplitError(
                f"Splitting changes the gradients by {self.change:.2g} of their norm "
                f"({self.change:.0%}), and the loss by {self.loss_change:.0%}, on {self.samples} "
                f"samples in {self.parts} parts: the loss or the model mixes samples. Leave "
                "micro-batching out of the plan."
            )


def verify_split(
    objective: Objective,
    parameters: Iterable[Tensor],
    batch: Any,
    parts: int,
    *,
    dim: int = 0,
    allow_random: bool = False,
) -> SplitCheck:
    """Compare the gradients of some samples of `batch`, whole and in two parts.

    As many samples as a part has are taken, at most four and at least two. Dropout is left
    out where it is allowed. Gradients, values and generators are as before afterwards.

    Raises:
        CannotSplitError: the loss cannot be split by what it reduces over, or there is nothing
            to compare.
    """
    parameters = list(parameters)
    size = batch_size(batch, dim)
    if size < 2:
        raise CannotSplitError(
            f"A batch of {size} cannot be split. Leave micro-batching out of the plan."
        )
    samples = min(size, max(2, min(4, part_sizes(size, parts)[0])))
    trained = [p for p in parameters if p.requires_grad]
    without = _NoDropout() if allow_random else nullcontext()
    with generators_kept(), unobserved(), without:
        for window in range(_WINDOWS):
            start = window * (size - samples) // max(1, _WINDOWS - 1)
            some = pytree.tree_map_only(
                Tensor, torch.clone, take(batch, start, start + samples, dim, size)
            )
            compared = _compare(objective, parameters, trained, some, dim, allow_random)
            if compared is not None:
                return compared
    raise CannotSplitError(
        f"The loss is not finite, or no gradient is, on {samples} samples of the batch, so its "
        "split cannot be checked. Check the loss on a small batch."
    )


def _compare(
    objective: Objective,
    parameters: list[Tensor],
    trained: list[Tensor],
    batch: Any,
    dim: int,
    allow_random: bool,
) -> SplitCheck | None:
    def both(given: Any) -> tuple[tuple[list[Tensor], float], tuple[list[Tensor], float]]:
        made = plan_parts(objective, parameters, given, 2, dim=dim, allow_random=allow_random)
        whole = _gradients(trained, lambda take_in: _one(objective, given, take_in))
        split = _gradients(trained, lambda take_in: run_parts(objective, made, backward=take_in))
        return whole, split

    (whole, loss), (split, split_loss) = both(batch)
    norm = _norm(whole)
    if not (0 < norm < float("inf")) or loss != loss:
        return None
    change, loss_change = _distance(split, whole), _relative(split_loss, loss)
    eager_error = split_error = None
    try:
        with _in_float64(parameters):
            exact, exact_split = both(pytree.tree_map_only(Tensor, _double, batch))
    except RuntimeError:  # a buffer of another dtype, an operation without float64
        smallest = min((p.dtype for p in trained), key=lambda d: -torch.finfo(d).eps)
        ok = change <= _ROUNDING * torch.finfo(smallest).eps
    else:
        eager_error, split_error = _distance(whole, exact[0]), _distance(split, exact[0])
        change = _distance(exact_split[0], exact[0])
        loss_change = _relative(exact_split[1], exact[1])
        ok = change <= _EXACT
    return SplitCheck(
        ok=ok,
        samples=batch_size(batch, dim),
        parts=2,
        change=change,
        loss_change=loss_change,
        eager_error=eager_error,
        split_error=split_error,
    )


def _one(objective: Objective, batch: Any, take_in: Callable[[Tensor], None]) -> Tensor:
    loss = objective(batch)
    take_in(loss)
    return loss.detach()


def _gradients(
    trained: list[Tensor], run: Callable[[Callable[[Tensor], None]], Tensor]
) -> tuple[list[Tensor], float]:
    """What `run` adds up, without touching `.grad` or running hooks of parameters."""
    total = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in trained]

    def take_in(loss: Tensor) -> None:
        for sum_, g in zip(
            total, torch.autograd.grad(loss, trained, allow_unused=True), strict=True
        ):
            if g is not None:
                sum_.data.add_(g.to_dense() if g.is_sparse else g)

    with torch.enable_grad():
        loss = run(take_in)
    return [each.detach() for each in total], float(loss)


@contextmanager
def _in_float64(parameters: Sequence[Tensor]) -> Iterator[None]:
    data = [p.data for p in parameters]
    gradients = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = None
            p.data = _double(p.data)
        yield
    finally:
        for p, before, gradient in zip(parameters, data, gradients, strict=True):
            p.data = before
            p.grad = gradient


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def _distance(a: list[Tensor], b: list[Tensor]) -> float:
    norm = _norm(b)
    return _norm([x.double() - y.double() for x, y in zip(a, b, strict=True)]) / (norm or 1.0)


def _relative(a: float, b: float) -> float:
    return abs(a - b) / (abs(b) or 1.0)


class _NoDropout(TorchDispatchMode):
    """Dropout that drops nothing, so that gradients can be compared.

    Other draws stay as they are; where they matter, the comparison fails.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _aten.bernoulli_.float:
            return args[0].fill_(1)
        if func is _aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        names = [argument.name for argument in func._schema.arguments]
        if "dropout_p" in names:
            place = names.index("dropout_p")
            args = (*args[:place], 0.0, *args[place + 1 :])
            kwargs = {name: value for name, value in kwargs.items() if name != "dropout_p"}
        return func(*args, **kwargs)
