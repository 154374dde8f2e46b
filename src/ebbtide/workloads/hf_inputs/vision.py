"""Images, videos and what goes with them."""

from __future__ import annotations

import torch
from torch import Tensor

from ebbtide.workloads.hf_inputs.placeholders import grid
from ebbtide.workloads.hf_inputs.request import (
    Maker,
    Request,
    channels,
    first,
    image_size,
    patch_size,
)
from ebbtide.workloads.hf_inputs.text import hidden_states


def images(request: Request) -> Tensor:
    """``[batch, channels, height, width]``, or patches where a grid is given beside them."""
    if request.parameters & {"image_grid_thw", "grid_thw"}:
        return patches(request)
    return request.floats(request.batch, channels(request), *image_size(request))


def grid_thw(request: Request) -> Tensor:
    """``[batch, 3]``: frames, rows and columns of patches of each image."""
    rows, columns = grid(request)
    return torch.tensor([[1, rows, columns]] * request.batch, device=request.device)


def patches(request: Request) -> Tensor:
    """``[batch * rows * columns, values of a patch]``."""
    rows, columns = grid(request)
    return request.floats(request.batch * rows * columns, patch_values(request))


def patch_values(request: Request) -> int:
    """Numbers in one patch: channels, frames, height and width."""
    frames = first((request.vision, request.config), "temporal_patch_size") or 1
    tall, wide = patch_size(request)
    return channels(request) * int(frames) * tall * wide


def video(request: Request) -> Tensor:
    """``[batch, frames, channels, height, width]``."""
    frames = first((request.vision, request.config), "num_frames", "frames_per_clip") or 16
    return request.floats(request.batch, int(frames), channels(request), *image_size(request))


def patch_rows(request: Request) -> Tensor:
    """`patches` for a vision part on its own, text embeddings for other parts."""
    return patches(request) if "grid_thw" in request.parameters else hidden_states(request)


MAKERS: dict[str, Maker] = {
    "pixel_values": images,
    "image": images,
    "image_grid_thw": grid_thw,
    "grid_thw": grid_thw,
    "pixel_values_videos": video,
    "image_sizes": lambda r: torch.tensor([list(image_size(r))] * r.batch, device=r.device),
    "hidden_states": patch_rows,
    "pixel_mask": lambda r: r.ones(r.batch, *image_size(r)),
}
