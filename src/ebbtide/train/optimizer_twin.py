"""Step some parameters of an optimizer at a time, by a twin that shares its state.

A twin is an optimizer of the same class over other groups. The optimizer itself is not
touched: its groups are read anew at each step, so that what a scheduler sets is obeyed.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, MutableMapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ebbtide.errors import EbbtideError

_HOOKS = tuple(
    f"_optimizer_{what}_hooks"
    for what in ("step_pre", "step_post", "state_dict_pre", "state_dict_post")
)
_TRIAL_SIZE = 4  # elements in each dimension of a trial's parameters
_TRIAL_PARAMETERS = 3  # in each group
_TRIAL_STEPS = 3


class OptimizerError(EbbtideError):
    """An optimizer cannot be stepped the way a plan wants it to be."""


def twin(
    optimizer: Optimizer,
    groups: list[dict[str, Any]],
    state: MutableMapping[Any, Any] | None = None,
) -> Optimizer:
    """An optimizer like `optimizer`, without its hooks, over `groups` and `state`."""
    made = object.__new__(type(optimizer))
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # what a scheduler has put around it
    made.__dict__.update({name: OrderedDict() for name in _HOOKS})
    made.param_groups = groups
    made.state = defaultdict(dict) if state is None else state  # type: ignore[assignment]
    return made


def step_parameters(
    optimizer: Optimizer,
    parameters: Iterable[Tensor],
    state: MutableMapping[Any, Any] | None = None,
) -> None:
    """Update `parameters`, which have gradients, as `optimizer.step()` would.

    No step hooks run. The state is `optimizer.state` unless `state` is given.
    """
    wanted = {id(parameter) for parameter in parameters}
    groups = []
    for group in optimizer.param_groups:
        chosen = [p for p in group["params"] if id(p) in wanted]
        if chosen:
            groups.append({**group, "params": chosen})
    made = twin(optimizer, groups, optimizer.state if state is None else state)
    plain_step(made)


def plain_step(optimizer: Optimizer) -> None:
    """`optimizer.step()` without the hooks that torch registers for all optimizers."""
    step = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__  # type: ignore[attr-defined]
    step(optimizer)


def check_separable(optimizer: Optimizer) -> None:
    """Refuse an optimizer that cannot step its parameters one at a time.

    torch's own can, but for LBFGS. Another one is tried on a few small parameters: some steps
    of all together against the same steps one by one, which have to agree bit for bit.

    Raises:
        OptimizerError: it cannot, with the reason.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptimizerError(
            f"{name} finds one direction for all {_count(optimizer)} parameters together, so it "
            "cannot step them one at a time. Leave the optimizer's levers out of the plan."
        )
    if type(optimizer).__module__.split(".")[:2] == ["torch", "optim"]:
        return
    try:
        together, apart = _trial(optimizer, True), _trial(optimizer, False)
    except Exception as error:
        raise OptimizerError(
            f"Whether {name} can step its parameters one at a time could not be tried: "
            f"{type(error).__name__}: {error}. Leave the optimizer's levers out of the plan."
        ) from error
    if not _equal(together, apart):
        raise OptimizerError(
            f"{name} cannot step its parameters one at a time: on small copies of them "
            f"{_TRIAL_STEPS} steps gave other values than stepping them together. Its update "
            "looks at all gradients at once. Leave the optimizer's levers out of the plan."
        )


def _count(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _trial(optimizer: Optimizer, together: bool) -> Any:
    generator = torch.Generator().manual_seed(0)
    groups = [_small(group, generator) for group in optimizer.param_groups]
    tried = twin(optimizer, groups)
    every = [p for group in groups for p in group["params"]]
    for _ in range(_TRIAL_STEPS):
        for p in every:
            drawn = torch.randn(p.shape, generator=generator)
            p.grad = drawn.to(p.device, p.dtype)
        if together:
            plain_step(tried)
        else:
            for p in reversed(every):
                step_parameters(tried, [p])
    return [[p.detach() for p in every], tried.state_dict()]


def _small(group: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    made = []
    for p in group["params"][:_TRIAL_PARAMETERS]:
        shape = [min(size, _TRIAL_SIZE) for size in p.shape]
        drawn = torch.randn(shape, generator=generator).to(p.device, p.dtype)
        made.append(torch.nn.Parameter(drawn))
    return {**deepcopy({k: v for k, v in group.items() if k != "params"}), "params": made}


def _equal(a: Any, b: Any) -> bool:
    mine, spec = pytree.tree_flatten(a)
    other, spec_of_other = pytree.tree_flatten(_ordered(b, a))
    return spec == spec_of_other and all(
        torch.equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y
        for x, y in zip(mine, other, strict=True)
    )


def _ordered(given: Any, like: Any) -> Any:
    """`given` with the keys of each dict in the order that they have in `like`."""
    if isinstance(given, dict) and isinstance(like, dict) and given.keys() == like.keys():
        return {key: _ordered(given[key], value) for key, value in like.items()}
    if isinstance(given, list) and isinstance(like, list) and len(given) == len(like):
        return [_ordered(x, y) for x, y in zip(given, like, strict=True)]
    return given
