"""Optimizer state in 8 or 4 bits, by torchao. It changes what the optimizer computes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch.optim import Optimizer

from ebbtide.errors import MissingExtraError
from ebbtide.train.optimizer_twin import OptimizerError

_CLASSES = {
    (torch.optim.AdamW, 8): "AdamW8bit",
    (torch.optim.AdamW, 4): "AdamW4bit",
    (torch.optim.Adam, 8): "Adam8bit",
    (torch.optim.Adam, 4): "Adam4bit",
}
_SETTINGS = ("lr", "betas", "eps", "weight_decay", "amsgrad")


def low_bit_optimizer(
    optimizer: Optimizer, *, bits: int = 8, allow_lossy: bool = False
) -> Optimizer:
    """A new optimizer over the same parameters and settings whose state has fewer bits.

    Args:
        optimizer: an Adam or AdamW that has not stepped yet.
        bits: 8 or 4.
        allow_lossy: has to be said, because updates differ from those of `optimizer`.

    Raises:
        OptimizerError: not allowed, or not for this optimizer.
        MissingExtraError: torchao is not installed.
    """
    name = type(optimizer).__name__
    wanted = _CLASSES.get((type(optimizer), bits))
    if not allow_lossy:
        raise OptimizerError(
            f"State in {bits} bits changes the updates of {name}. Allow it with allow_lossy=True "
            "(--allow low-bit-state), or keep the state in host memory instead."
        )
    if wanted is None:
        raise OptimizerError(
            f"There is no {name} with state in {bits} bits; there are Adam and AdamW in 8 and 4. "
            "Use one of them, or keep the state in host memory instead."
        )
    if optimizer.state:
        raise OptimizerError(
            f"{name} has state for {len(optimizer.state)} parameters, which would be lost. Apply "
            "the plan before the first step."
        )
    odd = [g for g in optimizer.param_groups if g.get("maximize") or g.get("differentiable")]
    if odd:
        raise OptimizerError(
            f"{len(odd)} parameter group(s) maximise or are differentiable, which state in {bits} "
            "bits cannot. Keep the state in host memory instead."
        )
    try:
        made: Any = getattr(import_module("torchao.optim"), wanted)
    except ImportError as error:
        raise MissingExtraError(f"State in {bits} bits", "torchao", "low-bit") from error
    groups = [
        {key: group[key] for key in ("params", *_SETTINGS) if key in group}
        for group in optimizer.param_groups
    ]
    low: Optimizer = made(groups, **{k: optimizer.defaults[k] for k in _SETTINGS})
    return low
