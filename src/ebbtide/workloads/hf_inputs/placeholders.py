"""Where images and sound stand in a text: how many placeholder tokens, and which id.

A multi-modal language model writes one feature of an image over each placeholder token,
and refuses a text whose placeholders are not as many as the features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ebbtide.workloads.hf_inputs.request import Request, first, image_size, parts, patch_size

IMAGE_IDS = ("image_token_id", "image_token_index", "im_token_id", "image_patch_token_id")
AUDIO_IDS = ("audio_token_id", "audio_token_index", "audio_tok_id")
STATED = (
    "image_seq_length",
    "image_seq_len",
    "mm_tokens_per_image",
    "num_image_tokens",
    "num_query_tokens",
)


def image_tokens(request: Request) -> int:
    """Placeholder tokens of one image: as measured, as stated, or one a patch."""
    if "image" in request.features:
        return request.features["image"]
    stated = first((request.config, request.text), *STATED)
    if isinstance(stated, int):
        return stated
    rows, columns = grid(request)
    merge = first((request.vision, request.config), "spatial_merge_size", "merge_size") or 1
    return rows * columns // int(merge) ** 2


def grid(request: Request) -> tuple[int, int]:
    """Rows and columns of patches."""
    (height, width), (tall, wide) = image_size(request), patch_size(request)
    return height // tall, width // wide


def marks(request: Request) -> list[tuple[int, int]]:
    """Placeholder id and count of what each sample holds: an image, a sound."""
    found: list[tuple[int, int]] = []
    if "input_ids" not in request.parameters:
        return found
    if request.parameters & {"pixel_values", "image_patches"}:
        marker = first(tuple(parts(request.config)), *IMAGE_IDS)
        if isinstance(marker, int):
            found.append((marker, image_tokens(request)))
    if request.parameters & {"input_features", "input_values"} and "audio" in request.features:
        marker = first(tuple(parts(request.config)), *AUDIO_IDS)
        if isinstance(marker, int):
            found.append((marker, request.features["audio"]))
    return found


def with_placeholders(request: Request, ids: Tensor) -> Tensor:
    """`ids` with the placeholders after their first token; the text keeps its length."""
    blocks = [
        torch.full((ids.shape[0], count), marker, device=ids.device, dtype=ids.dtype)
        for marker, count in marks(request)
    ]
    return torch.cat([ids[:, :1], *blocks, ids[:, 1:]], dim=1) if blocks else ids


def token_types(request: Request) -> Tensor:
    """``[batch, seq]`` beside `with_placeholders`: 0 text, 1 image, 3 sound."""
    kinds = {0: 1, 1: 3}
    blocks = [
        torch.full((request.batch, count), kinds[i], device=request.device, dtype=torch.long)
        for i, (_, count) in enumerate(marks(request))
    ]
    zeros = torch.zeros(request.batch, request.seq, device=request.device, dtype=torch.long)
    return torch.cat([zeros[:, :1], *blocks, zeros[:, 1:]], dim=1)
