"""How many placeholder tokens an image or a sound takes: asked of the model itself, small.

Every family cuts, merges and pools patches in its own way. Rather than a formula each,
the part that sees is built narrow, with one layer, on the CPU, and given one sample of
the real size: the number of features it returns does not depend on its width.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ebbtide.workloads.hf_inputs import inputs_for
from ebbtide.workloads.hf_inputs.placeholders import AUDIO_IDS, IMAGE_IDS
from ebbtide.workloads.hf_inputs.request import Request, first, parts
from ebbtide.workloads.shrink import shrink

_CALLS = {"image": ("get_image_features", IMAGE_IDS), "audio": ("get_audio_features", AUDIO_IDS)}


def feature_tokens(
    cls: type[PreTrainedModel], config: PretrainedConfig, request: Request
) -> dict[str, int]:
    """Tokens a sample by kind, ``"image"`` and ``"audio"``; a kind is left out where unknown.

    Args:
        cls: class of the model.
        config: of the model.
        request: sizes of the inputs; its batch and device are not used.
    """
    kinds = {
        kind: call
        for kind, (call, ids) in _CALLS.items()
        if isinstance(first(tuple(parts(config)), *ids), int)
    }
    if not kinds:
        return {}
    for divisor in (8, 1):
        try:
            model = _build(cls, shrink(config, divisor=divisor, layers=1, image=False))
            found = {kind: _count(model, cls, request, call) for kind, call in kinds.items()}
        except Exception:  # whatever a narrow variant breaks in: the next one, or the formula
            continue
        known = {kind: count for kind, count in found.items() if count}
        if known:
            return known
    return {}


def _build(cls: type[PreTrainedModel], config: PretrainedConfig) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = cls._from_config(config)
    return model.eval()


def _count(model: nn.Module, cls: type[PreTrainedModel], request: Request, call: str) -> int | None:
    methods = [getattr(module, call) for module in model.modules() if hasattr(module, call)]
    if not methods:
        return None
    single = Request(
        config=request.config,
        class_name=request.class_name,
        parameters=request.parameters,
        batch=1,
        seq=request.seq,
        image=request.image,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    given = inputs_for(cls, single, labels=False)
    # The outermost may only hand on what it gets, as ``*args``.
    method, taken = methods[0], inspect.signature(methods[0]).parameters
    for inner in methods[1:]:
        if given.keys() & taken.keys():
            break
        method, taken = inner, inspect.signature(inner).parameters
    with torch.no_grad():
        result = method(**{name: value for name, value in given.items() if name in taken})
    return _rows(result)


def _rows(result: Any) -> int | None:
    """Features in what a model returned: everything but the last dimension."""
    for name in ("pooler_output", "last_hidden_state"):
        value = getattr(result, name, None)
        if value is not None:
            result = value
            break
    if isinstance(result, Tensor):
        return int(result.numel() // result.shape[-1])
    if isinstance(result, (tuple, list)) and result:
        if isinstance(result[0], Tensor):
            return sum(int(t.numel() // t.shape[-1]) for t in result)
        return _rows(result[0])
    return None
