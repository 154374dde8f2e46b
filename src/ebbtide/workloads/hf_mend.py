"""Fill what a bare configuration leaves open and a published one would state.

The default configuration of a model type is not always complete: T5's has no token to
start decoding with, LLaVA's names an image token beyond its vocabulary. Each change made
here is one that the published checkpoints of the family have too.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from ebbtide.workloads.hf_inputs.request import language_part, parts, read

PLACEHOLDERS = ("_token_id", "_token_index")
_MARKERS = ("image_token_index", "video_token_index", "audio_token_id", "audio_token_index")
# Published vocabularies are padded to a multiple of 64 for the tensor cores.
MULTIPLE = 64
HORIZON = 24
# What defaults leave out: `config.json` of facebook/esm2_t33_650M_UR50D, deepseek-ai/DeepSeek-V2.
PUBLISHED: dict[str, dict[str, Any]] = {
    "esm": {"vocab_size": 33},
    "deepseek_v2": {"num_experts_per_tok": 6},
    # facebook/xmod-base: English is the first of its languages.
    "xmod": {"default_language": "en_XX"},
    # zai-org/GLM-4.5V and zai-org/GLM-OCR: twice the rotary sections over the rotated share.
    "glm4v_moe_text": {"head_dim": 128},
    "glm_ocr_text": {"head_dim": 128},
    # facebook/wav2vec2-conformer-rel-pos-large-960h-ft: letters.
    "wav2vec2-conformer": {"vocab_size": 32},
    "wav2vec2-bert": {"vocab_size": 32},
}
# Which layers attend: `config.json` of ibm-ai-platform/Bamba-9B, and of
# ibm-granite/granite-4.0-tiny-preview.
BAMBA = (9, 18, 27)
GRANITE = slice(5, None, 10)


def complete(config: PretrainedConfig) -> PretrainedConfig:
    """`config` itself, with what is missing set in it and its parts."""
    for part in parts(config):
        if part.is_encoder_decoder or part is config:
            _start_token(part)
        if read(part, "pad_token_id") is None and "pad_token_id" in vars(part):
            part.pad_token_id = 0
        _horizon(part)
        _attend(part)
        for name, value in PUBLISHED.get(str(part.model_type), {}).items():
            if vars(part).get(name) is None:
                setattr(part, name, value)
        _heads(part)
    _image_token(config)
    _join(config)
    _fit_vocabulary(config)
    return config


def _start_token(config: PretrainedConfig) -> None:
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        start = getattr(config, "bos_token_id", None) or getattr(config, "pad_token_id", None)
        config.decoder_start_token_id = start or 0


def _image_token(config: PretrainedConfig) -> None:
    """Let tokens behind the vocabulary stand for images and sound where none is named."""
    behind = read(language_part(config), "vocab_size") or 0
    for number, name in enumerate(_MARKERS):
        if name in vars(config) and getattr(config, name) is None:
            setattr(config, name, behind + number)


def _horizon(config: PretrainedConfig) -> None:
    """Steps to forecast and to look back at: a day and two, as in the tourism checkpoints."""
    if "prediction_length" in vars(config) and config.prediction_length is None:
        config.prediction_length = HORIZON
    if "context_length" in vars(config) and config.context_length is None:
        config.context_length = config.prediction_length


def _attend(config: PretrainedConfig) -> None:
    """Give hybrids whose default has no attention layer those of Bamba-9B and Granite 4 tiny."""
    if "attn_layer_indices" in vars(config) and config.attn_layer_indices is None:
        config.attn_layer_indices = [i for i in BAMBA if i < config.num_hidden_layers]
    kinds = vars(config).get("layer_types")
    if config.model_type == "granitemoehybrid" and kinds and set(kinds) == {"linear_attention"}:
        for i in range(*GRANITE.indices(len(kinds))):
            kinds[i] = "full_attention"


def _heads(config: PretrainedConfig) -> None:
    """As many heads of keys as of queries, and heads that share the width, where not stated."""
    stated = vars(config)
    heads, width = stated.get("num_attention_heads"), stated.get("hidden_size")
    if not isinstance(heads, int) or not heads or not isinstance(width, int):
        return
    if stated.get("num_key_value_heads", heads) is None:
        config.num_key_value_heads = heads
    if stated.get("head_dim", width) is None:
        config.head_dim = width // heads


def _join(config: PretrainedConfig) -> None:
    """Let the vision part of Qwen's kind end in the width that the language part begins with."""
    vision, text = (vars(config).get(name) for name in ("vision_config", "text_config"))
    _join_sound(config)
    if vision is None or text is None:
        return
    width = read(text, "hidden_size")
    if width and "out_hidden_size" in vars(vision):
        vision.out_hidden_size = width
    elif width and {"spatial_merge_size", "embed_dim"} <= set(vars(vision)):
        vision.hidden_size = width


def _join_sound(config: PretrainedConfig) -> None:
    """Let the projector of Granite Speech's kind begin with the width that the encoder ends in."""
    projector, sound = (vars(config).get(name) for name in ("projector_config", "encoder_config"))
    audio, text = (vars(config).get(name) for name in ("audio_config", "text_config"))
    if audio is not None and text is not None and "output_dim" in vars(audio):
        audio.output_dim = read(text, "hidden_size") or audio.output_dim
    width = read(sound, "hidden_dim") if sound is not None else None
    if width and projector is not None and "encoder_hidden_size" in vars(projector):
        projector.encoder_hidden_size = width


def _fit_vocabulary(config: PretrainedConfig) -> None:
    """Make the vocabulary of the language part hold every special token that is named."""
    text = language_part(config)
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
