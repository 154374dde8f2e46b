"""Inputs of any Transformers model, from its forward signature and its configuration."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from ebbtide.errors import TargetError
from ebbtide.workloads.hf_inputs import audio, packed, special, text, vision
from ebbtide.workloads.hf_inputs.labels import labels_for, loss_of
from ebbtide.workloads.hf_inputs.request import Maker, Request

__all__ = ["Request", "inputs_for", "loss_of", "request_for"]

MAKERS: dict[str, Maker] = {**text.MAKERS, **vision.MAKERS, **audio.MAKERS, **special.MAKERS}
# Given wherever forward takes them, required or not: without them nothing is computed.
ALWAYS = ("input_ids", "pixel_values", "input_values", "input_features", "bbox")
BESIDE = {
    "pixel_values": ("image_grid_thw", "mm_token_type_ids"),
    "input_features": ("input_features_mask", "feature_attention_mask"),
}

# What is left away where a model is configured without the part that would read it.
PARTS = {
    "vision_config": ("pixel_values", "pixel_values_videos"),
    "audio_config": ("input_features", "input_values"),
}


def request_for(
    cls: type[PreTrainedModel],
    config: PretrainedConfig,
    *,
    batch: int,
    seq: int,
    image: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Request:
    """The `Request` of one step of `cls` built from `config`."""
    return Request(
        config=config,
        class_name=cls.__name__,
        parameters=frozenset(_signature(cls)),
        batch=batch,
        seq=seq,
        image=image,
        device=device,
        dtype=dtype,
    )


def inputs_for(cls: type[PreTrainedModel], request: Request, labels: bool = True) -> dict[str, Any]:
    """Keyword arguments for one call of a model of class `cls`.

    Args:
        cls: the model class.
        request: sizes and device.
        labels: add what makes the model return a loss.

    Raises:
        TargetError: ``forward`` requires an input that no rule makes.
    """
    kind = request.config.model_type
    rules = special.RULES.get(kind) or packed.RULES.get(kind, {})
    inputs: dict[str, Any] = {}
    for name in dict.fromkeys([*_wanted(cls, request), *rules]):
        if name == "labels":
            continue
        maker = rules.get(name) or MAKERS.get(name)
        if maker is None:
            raise TargetError(
                f"{cls.__name__} needs the input {name!r}, which cannot be made from its "
                "configuration. Write a script or module:function that makes it."
            )
        value = maker(request)
        # A rule that makes nothing says that this input is to be left away.
        if value is not None:
            inputs[name] = value
    if not labels or request.config.model_type in special.WITHOUT_LABELS:
        return inputs
    if "labels" in rules:
        return {**inputs, "labels": rules["labels"](request)}
    return inputs | labels_for(request, inputs)


def _wanted(cls: type[PreTrainedModel], request: Request) -> list[str]:
    parameters = _signature(cls)
    required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]
    main = getattr(cls, "main_input_name", None) or ()
    main = [main] if isinstance(main, str) else list(main)
    absent = {n for part, names in PARTS.items() if _lacks(request, part) for n in names}
    wanted = [n for n in (*ALWAYS, *main) if n in parameters and n not in absent]
    wanted += required
    for name in list(wanted):
        wanted += [n for n in BESIDE.get(name, ()) if n in parameters]
    return list(dict.fromkeys(wanted))


def _signature(cls: type[PreTrainedModel]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(cls.forward).parameters
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {n: p for n, p in parameters.items() if n != "self" and p.kind not in skipped}


def _lacks(request: Request, part: str) -> bool:
    """Whether the configuration has a place for `part` that is empty."""
    return part in vars(request.config) and vars(request.config)[part] is None
