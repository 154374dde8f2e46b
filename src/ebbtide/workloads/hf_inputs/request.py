"""What an input is made for: a model class, its configuration, sizes and a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

DEFAULT_IMAGE = 224
TEXT_PARTS = ("text_config", "llm_config", "language_config", "text_encoder_config", "decoder")
VISION_PARTS = (
    "vision_config",
    "vision_tower_config",
    "visual_config",
    "image_config",
    "backbone_config",
    "vision_encoder_config",
    "encoder",
    "encoder_config",
)
AUDIO_PARTS = (
    "audio_config",
    "audio_encoder_config",
    "audio_tower_config",
    "speech_config",
    "encoder_config",
    "speech_encoder_config",
)


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
        features: placeholder tokens that one ``"image"`` or ``"audio"`` takes, where measured.
    """

    config: PretrainedConfig
    class_name: str
    parameters: frozenset[str]
    batch: int
    seq: int
    image: int | None
    device: torch.device
    dtype: torch.dtype
    features: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> PretrainedConfig:
        """The configuration of the language part, or the whole where there is no part."""
        return language_part(self.config)

    @property
    def vision(self) -> PretrainedConfig:
        """The configuration of the image part, or the whole where there is no part."""
        return _part(self.config, VISION_PARTS)

    @property
    def audio(self) -> PretrainedConfig:
        """The configuration of the sound part, or the whole where there is no part."""
        return _part(self.config, AUDIO_PARTS)

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


def _part(config: PretrainedConfig, names: tuple[str, ...]) -> PretrainedConfig:
    """The innermost configuration that is reached by `names`, or `config` itself."""
    for outer in parts(config):
        for name in names:
            inner = vars(outer).get(name)
            if isinstance(inner, PretrainedConfig):
                return _part(inner, names)
    return config


def language_part(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration of the language part of `config`, or `config` itself."""
    return _part(config, TEXT_PARTS)


def first(configs: PretrainedConfig | tuple[PretrainedConfig, ...], *names: str) -> Any:
    """The first attribute of `names` that one of `configs` has and that is not None."""
    for config in configs if isinstance(configs, tuple) else (configs,):
        for name in names:
            value = read(config, name)
            if value is not None:
                return value
    return None


def read(config: Any, name: str) -> Any:
    """An attribute, None where it is missing or differs from layer to layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # Transformers' own class for what only single layers have
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
