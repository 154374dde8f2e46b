"""A small variant is of the same kind, consistent in itself, and small."""

from __future__ import annotations

import copy

import pytest
import torch

from ebbtide.workloads import hf_config
from ebbtide.workloads.hf_heads import model_class
from ebbtide.workloads.hf_inputs.request import parts
from ebbtide.workloads.hf_mend import complete
from ebbtide.workloads.shrink import MAX_LAYERS, VOCABULARY, shrink

TYPES = [
    "albert",
    "bart",
    "bert",
    "clip",
    "deepseek_v3",
    "gemma3",
    "gpt2",
    "llama",
    "llava",
    "mixtral",
    "qwen2_5_vl",
    "swin",
    "t5",
    "vit",
    "wav2vec2",
    "whisper",
]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("divisor", [2, 8])
def test_a_small_variant_is_built_and_is_smaller(name: str, divisor: int) -> None:
    config = complete(hf_config.from_type(name))
    small = shrink(config, divisor=divisor)
    cls = model_class(config)
    assert model_class(small) is cls
    with torch.device("meta"):
        counts = [sum(p.numel() for p in cls(c).parameters()) for c in (small, config)]
    assert counts[0] * divisor < counts[1]


@pytest.mark.parametrize("name", TYPES)
def test_the_original_is_left_as_it_was(name: str) -> None:
    config = complete(hf_config.from_type(name))
    before = copy.deepcopy(config.to_dict())
    shrink(config)
    assert config.to_dict() == before


def test_each_kind_of_layer_remains() -> None:
    text = shrink(hf_config.from_type("gemma3")).text_config
    kinds = text.layer_types
    assert set(kinds) == {"sliding_attention", "full_attention"}
    assert len(kinds) == text.num_hidden_layers == 6 <= MAX_LAYERS


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("jamba", {"mamba", "attention"}),
        ("bamba", {"linear_attention", "full_attention"}),
        ("granitemoehybrid", {"linear_attention", "full_attention"}),
        ("recurrent_gemma", {"linear_attention", "sliding_attention"}),
    ],
)
def test_hybrids_keep_an_attention_layer(name: str, kinds: set[str]) -> None:
    small = shrink(complete(hf_config.from_type(name)))
    assert small.num_hidden_layers <= MAX_LAYERS
    named = small.layers_block_type[: small.num_hidden_layers]
    assert len(set(named)) == 2
    assert any("attention" in kind and "linear" not in kind for kind in named)
    assert kinds >= set(named)


def test_special_tokens_stay_apart_and_inside() -> None:
    config = complete(hf_config.from_type("qwen2_5_vl"))
    small = shrink(config)
    names = ("image_token_id", "video_token_id", "vision_start_token_id")
    ids = [getattr(small, name) for name in names]
    assert len(set(ids)) == len(names) and all(0 <= i < VOCABULARY for i in ids)
    assert small.text_config.vocab_size == VOCABULARY


def test_rotary_sections_still_fill_half_a_head() -> None:
    for divisor in (2, 8):
        text = shrink(complete(hf_config.from_type("qwen2_5_vl")), divisor=divisor).text_config
        head = text.hidden_size // text.num_attention_heads
        assert sum(text.rope_parameters["mrope_section"]) == head // 2


def test_images_are_four_patches_a_side() -> None:
    assert shrink(hf_config.from_type("vit")).image_size == 4 * 16
    assert shrink(hf_config.from_type("vit"), image=False).image_size == 224


def test_published_gaps_are_filled() -> None:
    """What a default configuration leaves open, and a checkpoint would state."""
    assert complete(hf_config.from_type("t5")).decoder_start_token_id == 0
    llava = complete(hf_config.from_type("llava"))
    assert llava.text_config.vocab_size > llava.image_token_id
    assert llava.text_config.vocab_size % 64 == 0
    bamba = complete(hf_config.from_type("bamba"))
    assert bamba.attn_layer_indices == [9, 18, 27]
    granite = complete(hf_config.from_type("granitemoehybrid")).layer_types
    assert [i for i, kind in enumerate(granite) if kind == "full_attention"] == [5, 15, 25]
    assert complete(hf_config.from_type("informer")).prediction_length > 0
    qwen = complete(hf_config.from_type("qwen2_5_vl"))
    assert qwen.vision_config.out_hidden_size == qwen.text_config.hidden_size


@pytest.mark.parametrize("name", ["ministral", "hunyuan_v1_dense", "nemotron", "llama"])
def test_heads_are_stated(name: str) -> None:
    config = complete(hf_config.from_type(name))
    assert config.num_attention_heads % config.num_key_value_heads == 0
    if "head_dim" in vars(config):
        assert config.head_dim == config.hidden_size // config.num_attention_heads


def test_what_is_stated_is_kept() -> None:
    config = hf_config.from_type("llama")
    config.num_key_value_heads, config.head_dim = 2, 48
    complete(config)
    assert (config.num_key_value_heads, config.head_dim) == (2, 48)
    assert complete(hf_config.from_type("esm")).vocab_size == 33
    assert complete(hf_config.from_type("deepseek_v2")).num_experts_per_tok == 6


def test_parts_are_walked_outermost_first() -> None:
    config = hf_config.from_type("clip")
    assert next(parts(config)).model_type == "clip"
    assert {p.model_type for p in parts(config)} >= {"clip_text_model", "clip_vision_model"}
