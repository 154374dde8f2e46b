"""A small variant of a configuration: few layers, narrow, the same kind of model.

Widths are divided by one power of two throughout, so that what must divide or equal
something else still does; layers are cut to the shortest prefix that has every kind of
them; special tokens move into a small vocabulary together.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from ebbtide.workloads.hf_inputs.request import parts

LAYERS = re.compile(
    r"(num_(hidden_|encoder_|decoder_|attention_|transformer_)?layers|n_layers?|layers|depth"
    r"|(encoder|decoder|vision|text|speech|audio)_(num_)?(hidden_)?layers"
    r"|(encoder|decoder)_depth|num_(encoder_|decoder_)?blocks|num_hidden_groups|n_blocks?)"
)
WIDTHS = re.compile(
    r"(.*_)?(hidden_size|hidden_sizes|hidden_dim|hidden_dims|intermediate_size|embed_dim"
    r"|embed_dims|embedding_size|embedding_dim|d_model|d_ff|d_kv|d_inner|ffn_dim|mlp_dim"
    r"|head_dim|n_embd|n_inner|projection_dim|projection_size|ffn_size|feature_size"
    r"|attention_head_dim|vision_output_dim|upsample_groups|axial_pos_embds_dim|bottleneck_size|hidden_channels|inter_dim|rank|d_embed|d_head|decoder_dim|rotary_dim|attention_head_size)"
)
EXPERTS = re.compile(r"(n|num)_(routed_|local_|shared_)?experts|moe_num_experts")
CHOSEN_EXPERTS = re.compile(
    r"num_experts_per_tok(en)?|moe_k|top_k_experts|moe_topk|moe_top_k|experts_top_k"
)
CHOSEN_LAYERS = (
    "intermediate_layers_indices",
    "deepstack_visual_indexes",
    "fullatt_block_indexes",
    "global_attn_indexes",
)
# Layers whose outputs go on, each once.
TAKEN_FROM = "backbone_out_indices"
DEPTH_LISTS = ("depths", "num_layers", "layers", "num_block_repeats")
DEPTH_FACTORS = ("depth_coefficient", "depth_multiplier")
IMAGE_SIZES = ("image_size", "img_size")
SPECIAL = ("_token_id", "_token_index", "_token_ids", "_token_idx")
# Tokens that the patches of an image are pooled to: a square of two by two.
POOLED = ("mm_tokens_per_image",)
MAX_LAYERS = 8
MAX_KINDS = 4
VOCABULARY = 1024
VOCABULARIES = ("vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input")
PATCHES = 4
# By model type, the longer first: transformers 5.24.0, `rope_parameters.get("mrope_section", ...)`.
SECTIONS = {
    "cohere_compass": (24, 20, 20),
    "cosmos3_edge": (24, 20, 20),
    "ernie4_5_vl": (22, 22, 20),
    "glm4v": (8, 12, 12),
    "glm_image": (8, 12, 12),
    "glm_ocr": (8, 12, 12),
    "hy_v4_vl": (24, 20, 20),
    "paddleocr_vl": (16, 24, 24),
    "qwen2_5_omni": (16, 24, 24),
    "qwen2_5_vl": (16, 24, 24),
    "qwen2_vl": (16, 24, 24),
    "qwen3_5": (11, 11, 10),
    "qwen3_omni": (24, 20, 20),
    "qwen3_vl": (24, 20, 20),
    "qwen4_exp": (11, 11, 10),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """How one configuration is cut: layers before and after, widths, expert groups."""

    before: int
    keep: int
    divisor: int
    groups: int
    image: bool


def shrink(
    config: PretrainedConfig,
    *,
    divisor: int = 8,
    layers: int = 2,
    vocabulary: bool = True,
    image: bool = True,
) -> PretrainedConfig:
    """A copy of `config` with about `layers` layers and widths divided by `divisor`.

    Args:
        config: left as it is.
        divisor: a power of two; 1 keeps the widths.
        layers: layers to keep, more where there are more kinds of them.
        vocabulary: make it small too.
        image: make images small too.
    """
    small = copy.deepcopy(config)
    _shrink(small, divisor, layers, image)
    if vocabulary:
        _shrink_vocabulary(small)
    return small


def _shrink(config: PretrainedConfig, divisor: int, layers: int, image: bool) -> None:
    _state_sections(config)
    values = {k: v for k, v in vars(config).items() if k != "per_layer_config"}
    before = next((v for k, v in values.items() if LAYERS.fullmatch(k) and _whole(v)), 0)
    cut = _Cut(
        before=before,
        keep=_layers_needed(values, before, layers),
        # EfficientNet's kind computes widths from factors; single ones must not be changed.
        divisor=1 if "width_coefficient" in values else divisor,
        groups=values.get("n_group") or 1,
        image=image,
    )
    tiled: Any = None
    before_side = _side(values.get("vision_config"))
    for name, value in values.items():
        if isinstance(value, PretrainedConfig):
            _shrink(value, divisor, layers, image)
        elif name == "projector_patch_to_query_dict" and image:
            _set(config, name, {PATCHES**2: PATCHES})
        elif isinstance(value, dict) and name not in ("id2label", "label2id"):
            _scale_sections(value, divisor)
        elif _whole(value):
            _set(config, name, _smaller_number(name, value, cut, values))
        elif name == "image_grid_pinpoints" and value:
            tiled = value
        elif name == "axial_pos_shape" and value:
            _set(config, name, type(value)([PATCHES] * len(value)))
        elif isinstance(value, (list, tuple)) and value:
            _set(config, name, _smaller_list(name, value, cut))
        elif isinstance(value, float) and name in DEPTH_FACTORS:
            _set(config, name, min(value, 1.0))
    if image and {"image_embedding_size", "image_size", "patch_size"} <= vars(config).keys():
        _set(config, "image_embedding_size", _side(config) // config.patch_size)
    if tiled:
        factor = _side(values.get("vision_config")) / before_side
        _set(config, "image_grid_pinpoints", [[int(v * factor) for v in row] for row in tiled])


def _side(config: Any) -> int:
    """Pixels of a side of the images that `config` is for."""
    value = getattr(config, "image_size", None)
    return value if _whole(value) and value else 1


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _layers_needed(values: dict[str, Any], before: int, layers: int) -> int:
    """The shortest prefix that has every kind of layer named in a list of one a layer."""
    pattern = values.get("block_types") or ()  # one round, which all layers repeat
    needed = max(layers, 1 + (values.get("attn_layer_offset") or 0), len(pattern))
    needed = max(needed, len(values.get(TAKEN_FROM) or ()))
    for value in values.values():
        if not isinstance(value, (list, tuple)) or before < 2 or len(value) != before:
            continue
        named = [str(v) for v in value]
        kinds = set(named)
        if len(kinds) <= MAX_KINDS:
            needed = max(needed, *(named.index(kind) + 1 for kind in kinds))
    return min(needed, max(MAX_LAYERS, layers))


def _smaller_number(name: str, value: int, cut: _Cut, values: dict[str, Any]) -> int:
    if LAYERS.fullmatch(name):
        return min(value, cut.keep)
    if EXPERTS.fullmatch(name):
        return min(value, max(8, 2 * cut.groups))
    if CHOSEN_EXPERTS.fullmatch(name):
        return min(value, 2)
    if name == "first_k_dense_replace":
        return min(value, 1)
    if name in POOLED and cut.image:
        return PATCHES
    if name in IMAGE_SIZES and cut.image:
        return _smaller_image(value, values.get("patch_size"))
    if WIDTHS.fullmatch(name) and value >= 4 * cut.divisor and value % cut.divisor == 0:
        return value // cut.divisor
    return value


def _smaller_list(name: str, value: Any, cut: _Cut) -> Any:
    kind = type(value)
    if name in CHOSEN_LAYERS:
        return kind(min(v, cut.keep - 1) for v in value)
    if name == TAKEN_FROM:
        return kind(range(cut.keep - len(value), cut.keep))
    if name == "vision_feature_layer":
        return kind(max(-cut.keep, min(v, cut.keep)) for v in value)
    if name == "attn_layer_indices":
        return kind([cut.keep - 1])
    if len(value) == cut.before > max(cut.keep, MAX_KINDS):
        return kind(value[: cut.keep])
    if not all(_whole(v) for v in value):
        return value
    if name in DEPTH_LISTS:
        return kind(min(v, 2) for v in value)
    if name in IMAGE_SIZES and cut.image and len(value) == 2:
        return kind(_smaller_image(v, None) for v in value)
    if WIDTHS.fullmatch(name) and all(v % cut.divisor == 0 and v >= 4 * cut.divisor for v in value):
        return kind(v // cut.divisor for v in value)
    return value


def _smaller_image(value: int, patch: Any) -> int:
    """Four patches a side, or 64 pixels where images are not cut into patches."""
    if not _whole(patch):
        return min(value, 64) if value % 64 == 0 or value == 224 else value
    return (
        patch * PATCHES if patch >= 8 and value % patch == 0 and value > patch * PATCHES else value
    )


def _scale_sections(value: dict[str, Any], divisor: int) -> None:
    """Rotary sections count pairs of a head's width, so they shrink with it."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            _scale_sections(inner, divisor)
        elif key == "mrope_section" and sum(inner) % divisor == 0:
            scaled = [v // divisor for v in inner]
            scaled[-1] += sum(inner) // divisor - sum(scaled)
            value[key] = scaled


def _state_sections(config: PretrainedConfig) -> None:
    """Write down the rotary sections that some families assume where none are stated."""
    rope = vars(config).get("rope_parameters")
    kind = str(config.model_type)
    sections = next((s for prefix, s in SECTIONS.items() if kind.startswith(prefix)), None)
    if sections and isinstance(rope, dict) and "rope_theta" in rope:
        rope.setdefault("mrope_section", list(sections))
        if kind.startswith("glm"):
            rope.setdefault("partial_rotary_factor", 0.5)


def _shrink_vocabulary(config: PretrainedConfig) -> None:
    """Cut vocabularies, and give the special tokens beyond them ids at the new end."""
    moved: dict[int, int] = {}

    def place(token: Any) -> Any:
        if isinstance(token, (list, tuple)):
            return type(token)(place(t) for t in token)
        if not _whole(token) or token < VOCABULARY // 2:
            return token
        return moved.setdefault(token, VOCABULARY - 1 - len(moved))

    for part in parts(config):
        for name, value in list(vars(part).items()):
            if name.endswith(SPECIAL):
                _set(part, name, place(value))
            elif name in VOCABULARIES and _whole(value):
                _set(part, name, min(value, VOCABULARY))


def _set(config: PretrainedConfig, name: str, value: Any) -> None:
    if vars(config).get(name) == value:
        return
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        # A few names are properties derived from others.
        return
