"""A loss for models that have none of their own."""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.vgpu.virtual_gpu import VirtualGpu

_ASSUMED = (
    "No loss is known for this model: the sum of its outputs is taken; a real loss may need more"
)


def sum_of(outputs: Any) -> torch.Tensor:
    """The sum of every floating tensor in `outputs` that depends on parameters, in float32.

    It is listed as an assumption where a virtual GPU is on.

    Raises:
        ValueError: there is none.
    """
    found = [tensor.sum() for tensor in _tensors(outputs) if tensor.requires_grad]
    if not found:
        raise ValueError("the model returned nothing that depends on its parameters")
    VirtualGpu.assume("loss", _ASSUMED)
    return torch.stack([each.float() for each in found]).sum()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in _tensors(each)]
    if isinstance(value, tuple | list):
        return [tensor for each in value for tensor in _tensors(each)]
    return []
