"""Tell models apart by what a plan depends on."""

from __future__ import annotations

import hashlib

from torch import nn


def fingerprint(model: nn.Module) -> str:
    """A short text that is the same for models of the same parameters and buffers.

    Names, shapes, dtypes and which ones are trained count; values and devices do not.
    """
    lines = [
        f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
    return f"{type(model).__name__}-{digest}"
