"""Token ids, masks, boxes and what else goes with text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebbtide.workloads.hf_inputs.placeholders import token_types, with_placeholders
from ebbtide.workloads.hf_inputs.request import Maker, Request, first, vocabulary


def safe_high(request: Request) -> int:
    """One above the largest token id that has no special meaning.

    Placeholder ids (of images, sound) mark positions that features are written to, so
    ordinary text must not contain them.
    """
    special = [
        value
        for config in (request.config, request.text)
        for name, value in vars(config).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value > 3
    ]
    return max(min([vocabulary(request), *special]), 4)


def token_ids(request: Request) -> Tensor:
    """``[batch, seq]``, with the placeholders that the other inputs need."""
    high = safe_high(request)
    ids = request.ints(high, request.batch, request.seq, low=min(3, high - 1))
    return with_placeholders(request, ids)


def plain_ids(request: Request) -> Tensor:
    """``[batch, seq]`` without placeholders."""
    high = safe_high(request)
    return request.ints(high, request.batch, request.seq, low=min(3, high - 1))


def mask(request: Request) -> Tensor:
    """``[batch, seq]`` of ones."""
    return request.ones(request.batch, request.seq)


def boxes(request: Request) -> Tensor:
    """``[batch, seq, 4]``: one word box a token, x1 <= x2 and y1 <= y2."""
    corner = request.ints(400, request.batch, request.seq, 2)
    return torch.cat([corner, corner + 100], dim=-1)


def decoder_ids(request: Request) -> Tensor:
    """``[batch, seq]`` for the decoder of an encoder and decoder."""
    config = first(request.config, "decoder", "decoder_config", "text_decoder_config")
    high = first((config, request.text), "vocab_size", "decoder_vocab_size") if config else None
    return request.ints(min(high or vocabulary(request), 100), request.batch, request.seq, low=3)


def position_ids(request: Request) -> Tensor:
    """``[batch, seq]`` counting from zero."""
    return torch.arange(request.seq, device=request.device).expand(request.batch, -1)


def hidden_states(request: Request) -> Tensor:
    """``[batch, seq, hidden]`` for parts that start from embeddings."""
    width = first(request.text, "hidden_size", "d_model", "n_embd", "embed_dim", "dim")
    return request.floats(request.batch, request.seq, int(width))


def languages(request: Request) -> Tensor:
    """``[batch]`` of language numbers."""
    return request.ints(1, request.batch)


MAKERS: dict[str, Maker] = {
    "input_ids": token_ids,
    "attention_mask": mask,
    "bbox": boxes,
    "decoder_input_ids": decoder_ids,
    "inputs_embeds": hidden_states,
    "hidden_states": hidden_states,
    "position_ids": position_ids,
    "qformer_input_ids": lambda r: r.ints(100, r.batch, 8, low=3),
    "encoder_hidden_states": hidden_states,
    "mm_token_type_ids": token_types,
}


def shifted(ids: Any) -> Any:
    """Labels of a language model: the ids themselves, in a tensor of their own."""
    return ids.clone()
