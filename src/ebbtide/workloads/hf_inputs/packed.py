"""Images as rows of patches, each with its numbers in one row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebbtide.workloads.hf_inputs.placeholders import grid
from ebbtide.workloads.hf_inputs.request import Maker, Request, channels, first, patch_size


def _rows(request: Request) -> int:
    """Values of a patch: channels times height times width."""
    tall, wide = patch_size(request)
    return channels(request) * tall * wide


def _square(request: Request) -> int:
    """Patches a side: of the positions that the model holds, where it says so."""
    held = first((request.vision, request.config), "num_patches")
    return int(held**0.5) if held else grid(request)[0]


def _packed(request: Request) -> Tensor:
    """``[batch, patches, values of a patch]``."""
    return request.floats(request.batch, _square(request) ** 2, _rows(request))


def _shapes(request: Request) -> Tensor:
    """``[batch, 2]``: rows and columns of patches."""
    side = _square(request)
    return torch.tensor([[side, side]] * request.batch, device=request.device)


def _numbered(request: Request) -> Tensor:
    """``[batch, patches, 2 + values of a patch]``: row and column come first."""
    rows, columns = 4, 4
    places = torch.cartesian_prod(torch.arange(1, rows + 1), torch.arange(1, columns + 1))
    values = request.floats(request.batch, rows * columns, _rows(request))
    places = places.to(request.device, values.dtype).expand(request.batch, -1, -1)
    return torch.cat([places, values], -1)


_SHAPED: dict[str, Maker] = {
    "pixel_values": _packed,
    "pixel_attention_mask": lambda r: r.ones(r.batch, _square(r) ** 2),
    "spatial_shapes": _shapes,
}
_NUMBERED: dict[str, Maker] = {
    "flattened_patches": _numbered,
    "attention_mask": lambda r: r.ones(r.batch, 16),
}
RULES: dict[str, dict[str, Any]] = {
    "lfm2_vl": _SHAPED,
    "siglip2": _SHAPED,
    "siglip2_vision_model": _SHAPED,
    "pix2struct": _NUMBERED,
    "pix2struct_vision_model": _NUMBERED,
}
