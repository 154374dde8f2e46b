"""What an input is made for: a model class, its configuration, sizes and a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

DEFAULT_IMAGE = 224


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Sizes and place of the inputs of one step.

    Attributes:
        config: of the whole model.
        class_name: of the model, e.g. ``"LlamaForCausalLM"``.
        parameters: names that its ``forward`` takes.
        batch: samples.
        seq: tokens a sample, image and audio placeholders included where there are any.
        image: side of a square image in pixels, or None for the configuration's own.
        device: where the tensors are made.
        dtype: of floating-point inputs.
    """

    config: PretrainedConfig
    class_name: str
    parameters: frozenset[str]
    batch: int
    seq: int
    image: int | None
    device: torch.device
    dtype: torch.dtype

    @property
    def text(self) -> PretrainedConfig:
        """The configuration of the language part, or the whole where there is no part."""
        for name in ("text_config", "llm_config", "language_config", "thinker_config", "decoder"):
            part = getattr(self.config, name, None)
            if isinstance(part, PretrainedConfig):
                inner = getattr(part, "text_config", None)
                return inner if isinstance(inner, PretrainedConfig) else part
        return self.config

    @property
    def vision(self) -> PretrainedConfig:
        """The configuration of the image part, or the whole where there is no part."""
        names = ("vision_config", "vision_tower_config", "visual_config", "backbone_config")
        for name in (*names, "image_config", "encoder", "encoder_config"):
            part = getattr(self.config, name, None)
            if isinstance(part, PretrainedConfig):
                inner = getattr(part, "vision_config", None) or getattr(
                    part, "backbone_config", None
                )
                return inner if isinstance(inner, PretrainedConfig) else part
        return self.config

    @property
    def audio(self) -> PretrainedConfig:
        """The configuration of the sound part, or the whole where there is no part."""
        for name in ("audio_config", "audio_encoder_config", "encoder_config", "speech_config"):
            part = getattr(self.config, name, None)
            if isinstance(part, PretrainedConfig):
                return part
        return self.config

    def floats(self, *shape: int) -> Tensor:
        """Uniform noise of the input dtype."""
        return torch.rand(shape, device=self.device, dtype=self.dtype)

    def ints(self, high: int, *shape: int, low: int = 0) -> Tensor:
        """Integers from `low` up to but without `high`."""
        return torch.randint(low, max(high, low + 1), shape, device=self.device)

    def ones(self, *shape: int) -> Tensor:
        """A mask that hides nothing."""
        return torch.ones(shape, device=self.device, dtype=torch.long)


Maker = Callable[[Request], Any]


def first(configs: PretrainedConfig | tuple[PretrainedConfig, ...], *names: str) -> Any:
    """The first attribute of `names` that one of `configs` has and that is not None."""
    for config in configs if isinstance(configs, tuple) else (configs,):
        for name in names:
            value = getattr(config, name, None)
            if value is not None:
                return value
    return None


def parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """`config` and every configuration inside it, outermost first."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from parts(value)


def pair(value: Any) -> tuple[int, int]:
    """Height and width from a number, a pair, or a mapping with both."""
    if isinstance(value, dict):
        return int(value["height"]), int(value["width"])
    if isinstance(value, (list, tuple)):
        return int(value[0]), int(value[-1])
    return int(value), int(value)


def image_size(request: Request) -> tuple[int, int]:
    """Height and width of one image: what was asked, else the configuration's."""
    if request.image is not None:
        return request.image, request.image
    configs = (request.vision, request.config)
    value = first(configs, "image_size", "img_size", "input_size", "input_image_size", "crop_size")
    return pair(value) if value else (DEFAULT_IMAGE, DEFAULT_IMAGE)


def patch_size(request: Request) -> tuple[int, int]:
    """Height and width of one patch of the vision part; 16 where none is stated."""
    value = first((request.vision, request.config), "patch_size", "patch_stride", "encoder_stride")
    if isinstance(value, (list, tuple)) and len(value) == 3:
        value = value[1:]
    return pair(value) if value else (16, 16)


def channels(request: Request) -> int:
    """Colour channels of an image."""
    value = first((request.vision, request.config), "num_channels", "in_channels", "in_chans")
    return int(value) if isinstance(value, int) and value < 64 else 3


def vocabulary(request: Request) -> int:
    """How many token ids the language part knows."""
    value = first(
        (request.text, request.config),
        "vocab_size",
        "n_vocab",
        "text_vocab_size",
        "encoder_vocab_size",
    )
    if value is None:
        found = (getattr(part, "vocab_size", None) for part in parts(request.config))
        value = next((v for v in found if isinstance(v, int)), 2)
    return int(value)
