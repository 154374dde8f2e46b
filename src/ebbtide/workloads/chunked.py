"""Cross-entropy without the whole of the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 1024


def chunked_loss(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Mean cross-entropy of the next token, logits of `CHUNK_TOKENS` tokens at a time.

    The logits of a chunk are computed again in backward, so that none are kept, as in
    torchtune's and TRL's chunked losses.

    Args:
        model: a causal language model of Transformers, possibly wrapped by peft.
        inputs: with ``input_ids`` and ``labels``, ``[batch, seq]``.
    """
    plain: Any = getattr(model, "base_model", model)
    if hasattr(plain, "model") and hasattr(model, "peft_config"):
        plain = plain.model
    else:
        plain = model
    given = {k: v for k, v in inputs.items() if k != "labels"}
    body = getattr(plain, plain.base_model_prefix)
    hidden = body(**given, use_cache=False)[0][:, :-1]
    hidden = hidden.reshape(-1, hidden.shape[-1])
    labels = inputs["labels"][:, 1:].reshape(-1)
    head = plain.get_output_embeddings()
    total = hidden.new_zeros((), dtype=torch.float32)
    for rows, wanted in zip(hidden.split(CHUNK_TOKENS), labels.split(CHUNK_TOKENS), strict=True):
        total = total + checkpoint(_summed, head, rows, wanted, use_reentrant=False)
    mean: Tensor = total / labels.numel()
    return mean


def _summed(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(head(hidden).float(), labels, reduction="sum")
