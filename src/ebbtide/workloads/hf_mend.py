"""Fill what a bare configuration leaves open and a published one would state.

The default configuration of a model type is not always complete: T5's has no token to
start decoding with, LLaVA's names an image token beyond its vocabulary. Each change made
here is one that the published checkpoints of the family have too.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from ebbtide.workloads.hf_inputs.request import parts

PLACEHOLDERS = ("_token_id", "_token_index")
# Published vocabularies are padded to a multiple of 64 for the tensor cores.
MULTIPLE = 64


def complete(config: PretrainedConfig) -> PretrainedConfig:
    """`config` itself, with what is missing set in it and its parts."""
    for part in parts(config):
        if part.is_encoder_decoder or part is config:
            _start_token(part)
        if getattr(part, "pad_token_id", 0) is None:
            part.pad_token_id = 0
    _fit_vocabulary(config)
    return config


def _start_token(config: PretrainedConfig) -> None:
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        start = getattr(config, "bos_token_id", None) or getattr(config, "pad_token_id", None)
        config.decoder_start_token_id = start or 0


def _fit_vocabulary(config: PretrainedConfig) -> None:
    """Make the vocabulary of the language part hold every special token that is named."""
    text = config.get_text_config()
    size = getattr(text, "vocab_size", None)
    if not isinstance(size, int):
        return
    largest = max(
        (
            value
            for part in {id(config): config, id(text): text}.values()
            for name, value in vars(part).items()
            if name.endswith(PLACEHOLDERS) and isinstance(value, int)
        ),
        default=0,
    )
    if largest >= size:
        text.vocab_size = (largest // MULTIPLE + 1) * MULTIPLE
