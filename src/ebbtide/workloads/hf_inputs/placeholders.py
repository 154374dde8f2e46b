"""Where images and sound stand in a text: how many placeholder tokens, and which id.

A multi-modal language model writes one feature of an image over each placeholder token,
and refuses a text whose placeholders are not as many as the features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ebbtide.workloads.hf_inputs.request import Request, first, image_size, patch_size

IMAGE_IDS = ("image_token_id", "image_token_index", "im_token_id", "image_patch_token_id")
AUDIO_IDS = ("audio_token_id", "audio_token_index", "audio_tok_id")
STATED = ("image_seq_length", "image_seq_len", "mm_tokens_per_image", "num_image_tokens")


def image_tokens(request: Request) -> int:
    """Placeholder tokens of one image."""
    rule = IMAGE_RULES.get(request.config.model_type)
    if rule is not None:
        return rule(request)
    if "image_grid_thw" in request.parameters:
        return merged_grid(request)
    stated = first((request.config, request.text), *STATED)
    return int(stated) if isinstance(stated, int) else plain_grid(request)


def plain_grid(request: Request) -> int:
    """One token a patch."""
    rows, columns = grid(request)
    return rows * columns


def merged_grid(request: Request) -> int:
    """One token for each square of patches that are merged."""
    merge = first((request.vision, request.config), "spatial_merge_size", "merge_size") or 1
    return plain_grid(request) // int(merge) ** 2


def shuffled(request: Request) -> int:
    """Patches after pixel shuffle by a linear factor below or above one."""
    factor = first(
        (request.config, request.vision),
        "downsample_ratio",
        "pixel_shuffle_ratio",
        "scale_factor",
        "downsample_factor",
        "downscale_factor",
    )
    factor = float(factor or 1)
    factor = 1 / factor if factor > 1 else factor
    return round(plain_grid(request) * factor**2)


def grid(request: Request) -> tuple[int, int]:
    """Rows and columns of patches."""
    (height, width), (tall, wide) = image_size(request), patch_size(request)
    return height // tall, width // wide


IMAGE_RULES: dict[str, Callable[[Request], int]] = {}


def with_placeholders(request: Request, ids: Tensor) -> Tensor:
    """`ids` that begin with the placeholders of one image and one sound a sample."""
    if "pixel_values" in request.parameters and "input_ids" in request.parameters:
        marker = first((request.config, request.text), *IMAGE_IDS)
        if isinstance(marker, int):
            ids = _put(ids, marker, image_tokens(request))
    return ids


def _put(ids: Tensor, marker: int, count: int) -> Tensor:
    """`ids` after `count` markers a row, so that the text keeps its length."""
    markers = torch.full((ids.shape[0], count), marker, device=ids.device, dtype=ids.dtype)
    return torch.cat([ids[:, :1], markers, ids[:, 1:]], dim=1)
