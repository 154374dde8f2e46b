"""What a model is trained towards, by the task in its class name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ebbtide.workloads.hf_inputs.request import Request, first, image_size, vocabulary
from ebbtide.workloads.sums import sum_of

OBJECTS = 3


def labels_for(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that make ``forward`` return a loss; empty where it has none."""
    name = request.class_name
    for ending, rule in RULES.items():
        if name.endswith(ending):
            return rule(request, inputs)
    return {}


def _copy(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    if "labels" not in request.parameters or "input_ids" not in inputs:
        return _decoded(request, inputs)
    return {"labels": inputs["input_ids"].clone()}


def _decoded(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    if "labels" not in request.parameters:
        return {}
    high = min(vocabulary(request), 100)
    return {"labels": request.ints(high, request.batch, request.seq, low=min(3, high - 1))}


def _generated(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    """Of an encoder and decoder the decoder's text, of a decoder the text itself."""
    if request.config.is_encoder_decoder:
        return _decoded(request, inputs)
    return _copy(request, inputs)


def _class(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    if "labels" not in request.parameters:
        return {}
    return {"labels": request.ints(request.config.num_labels, request.batch)}


def _each_token(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"labels": request.ints(request.config.num_labels, request.batch, request.seq)}


def _span(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    place = request.ints(request.seq, request.batch)
    return {"start_positions": place, "end_positions": place.clone()}


def _spoken(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    high = min(vocabulary(request), 30)
    return {"labels": request.ints(high, request.batch, 6, low=1)}


def _pixels(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"labels": request.ints(request.config.num_labels, request.batch, *image_size(request))}


def _depth(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    return {}


def _boxes(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    """Three objects an image: classes, and boxes as centre and size in shares of the image."""
    if "labels" not in request.parameters:
        return {}
    targets = [
        {
            "class_labels": request.ints(request.config.num_labels, OBJECTS),
            "boxes": request.floats(OBJECTS, 4) * 0.3 + 0.2,
        }
        for _ in range(request.batch)
    ]
    return {"labels": targets}


def _masks(request: Request, inputs: dict[str, Any]) -> dict[str, Any]:
    """Three masks an image with their classes."""
    size = image_size(request)
    return {
        "mask_labels": [
            request.ints(2, OBJECTS, *size).to(request.dtype) for _ in range(request.batch)
        ],
        "class_labels": [
            request.ints(request.config.num_labels, OBJECTS) for _ in range(request.batch)
        ],
    }


Rule = Callable[[Request, dict[str, Any]], dict[str, Any]]
RULES: dict[str, Rule] = {
    "ForCausalLM": _copy,
    "LMHeadModel": _copy,
    "ForMaskedLM": _copy,
    "WithLMHeadModel": _copy,
    "ForConditionalGeneration": _generated,
    "ForTextToText": _generated,
    "MTModel": _generated,
    "ForVisionText2Text": _generated,
    "ForPreTraining": _copy,
    "ForSequenceClassification": _class,
    "ForImageClassification": _class,
    "ForVideoClassification": _class,
    "ForAudioClassification": _class,
    "ForTokenClassification": _each_token,
    "ForQuestionAnswering": _span,
    "ForCTC": _spoken,
    "ForRNNT": _spoken,
    "ForTDT": _spoken,
    "ForSemanticSegmentation": _pixels,
    "ForDepthEstimation": _depth,
    "ForObjectDetection": _boxes,
    "ForUniversalSegmentation": _masks,
    "ForInstanceSegmentation": _masks,
}


def loss_of(outputs: Any) -> torch.Tensor:
    """The model's own loss, or the sum of everything floating that it returned."""
    loss = first(outputs, "loss") if not isinstance(outputs, (tuple, torch.Tensor)) else None
    if isinstance(loss, torch.Tensor):
        return loss.sum()
    return sum_of(outputs)
