"""Optimizers by name, in each of torch's implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ebbtide.errors import UsageError
from ebbtide.workloads.options import WorkloadOptions

LEARNING_RATE = 1e-3
DEFAULT = "adamw"
_KINDS: dict[str, dict[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "for-loop": {"foreach": False, "fused": False},
}
_MAKERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "momentum": lambda params, **kw: torch.optim.SGD(params, momentum=0.9, **kw),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}
_WITHOUT_FUSED = ("rmsprop", "adafactor")


def make_optimizer(params: Iterable[nn.Parameter], options: WorkloadOptions) -> Optimizer:
    """The optimizer that `options` name, over those of `params` that are trained.

    Raises:
        UsageError: torch has no such implementation of it.
    """
    kind: dict[str, Any] = dict(_KINDS[options.optimizer_kind])
    name = options.optimizer or DEFAULT
    if name in _WITHOUT_FUSED and kind.pop("fused", False):
        raise UsageError(f"optimizer_kind: torch has no fused {name}")
    trained = [p for p in params if p.requires_grad]
    return _MAKERS[name](trained, lr=LEARNING_RATE, **kind)


def step_in_backward(model: nn.Module, options: WorkloadOptions) -> list[Optimizer]:
    """Step each parameter as soon as its gradient is complete, and drop the gradient.

    One optimizer a parameter, as in torch's tutorial on optimizer steps in backward.

    Returns:
        The optimizers, which hold the state.
    """
    optimizers = []
    for param in model.parameters():
        if not param.requires_grad:
            continue
        optimizer = make_optimizer([param], options)
        optimizers.append(optimizer)

        def run(_: torch.Tensor, own: Optimizer = optimizer) -> None:
            own.step()
            own.zero_grad()

        param.register_post_accumulate_grad_hook(run)
    return optimizers
