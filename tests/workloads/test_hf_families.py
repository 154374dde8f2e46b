"""Families whose inputs or sizes follow rules of their own, built small and trained a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ebbtide.workloads import hf_config
from ebbtide.workloads.hf import TransformersModel
from ebbtide.workloads.hf_mend import complete
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.shrink import shrink
from ebbtide.workloads.training import Training

TEXT = WorkloadOptions(batch=2, seq=16, optimizer="none")
OTHER = WorkloadOptions(batch=2, optimizer="none")


def _small(name: str) -> tuple[TransformersModel, WorkloadOptions]:
    model = TransformersModel(shrink(complete(hf_config.from_type(name))), name)
    options = TEXT if model.reads_text() else OTHER
    model.measure(options)
    return model, options


def _trained(name: str) -> dict[str, Any]:
    """The inputs of one step, after which some parameter has a gradient."""
    torch.manual_seed(0)
    model, options = _small(name)
    training = Training(model, options, "cpu")
    training.step(0)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in training.model.parameters())
    return dict(model.make_inputs(options, 2, torch.device("cpu")))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        # Patches in rows, with what says where they are.
        ("siglip2_vision_model", {"pixel_attention_mask": (2, 256), "spatial_shapes": (2, 2)}),
        ("fuyu", {"image_patches": None}),
        ("video_llama_3_vision", {"grid_thw": (2, 3), "merge_sizes": (2,)}),
        # Frames.
        ("xclip_vision_model", {"pixel_values": (16, 3, 128, 128)}),
        # Stacked frames, whole windows, widths of its own.
        ("granite_speech_encoder", {"hidden_states": (2, 128, 160)}),
        ("qwen3_asr_encoder", {"input_features_mask": (2, 200)}),
        ("wav2vec2-bert", {"input_features": (2, 128, 160)}),
        # Several codebooks at once.
        ("dia_decoder", {"input_ids": (2, 16, 9)}),
        # Series in a list, regions beside a text, a resampler's context.
        ("timesfm", {"past_values": None}),
        ("visual_bert", {"visual_embeds": (2, 36, 64)}),
        ("idefics2_perceiver", {"attention_mask": (2, 64)}),
        ("blip_2_qformer", {"encoder_hidden_states": (2, 16, 176)}),
        # Text that is answered with text.
        ("speecht5", {"decoder_input_ids": (2, 16), "labels": (2, 16)}),
        ("marian", {"labels": (2, 16)}),
    ],
)
def test_inputs_of_its_own(name: str, shapes: dict[str, tuple[int, ...] | None]) -> None:
    given = _trained(name)
    for key, shape in shapes.items():
        value = given[key]
        if shape is not None:
            assert isinstance(value, Tensor)
            assert tuple(value.shape) == shape


@pytest.mark.parametrize("name", ["voxtral", "omniasr", "qwen3_asr", "aria", "vipllava"])
def test_as_many_placeholders_as_features(name: str) -> None:
    """Asked of the model's inner part, where the outer one only hands on."""
    model, options = _small(name)
    given = model.make_inputs(options, 2, torch.device("cpu"))
    (count,) = model._features.values()
    assert given["input_ids"].shape == (2, 16 + count)
    Training(model, options, "cpu").step(0)


@pytest.mark.parametrize("name", ["glm4v_moe_text", "glm_ocr_text", "xmod", "wav2vec2-conformer"])
def test_what_a_default_leaves_open_is_as_published(name: str) -> None:
    _trained(name)


def test_what_is_stated_is_left_as_it_is() -> None:
    config = hf_config.from_type("glm_ocr_text")
    config.head_dim = 256
    assert complete(config).head_dim == 256
    assert complete(hf_config.from_type("glm_ocr_text")).head_dim == 128


def test_reformer_trains_on_as_many_tokens_as_its_axes_make() -> None:
    config = hf_config.from_type("reformer")
    assert TransformersModel(config, "reformer").default_seq() == 64 * 64
    small = shrink(config)
    assert sum(small.axial_pos_embds_dim) == small.hidden_size
    assert TransformersModel(small, "reformer").default_seq() == 16
    config.axial_pos_embds = False
    assert TransformersModel(config, "reformer").default_seq() == 512


def test_speech_is_answered_in_tokens_up_to_the_decoders_positions() -> None:
    model = TransformersModel(hf_config.from_type("whisper"), "whisper")
    assert model.reads_text()
    assert model.default_seq() == 448
    given = model.make_inputs(replace(OTHER, seq=100), 2, torch.device("cpu"))
    assert given["labels"].shape == (2, 100)


@pytest.mark.parametrize(
    ("name", "part", "attribute"),
    [("sam", "prompt_encoder_config", "image_embedding_size")],
)
def test_derived_sizes_follow_the_image(name: str, part: str, attribute: str) -> None:
    config = hf_config.from_type(name)
    small = getattr(shrink(config), part)
    assert getattr(small, attribute) == small.image_size // small.patch_size
    assert small.image_size < getattr(config, part).image_size


def test_features_are_taken_from_as_many_layers_as_there_are_features() -> None:
    config = hf_config.from_type("dpt")
    small = shrink(config)
    assert len(small.backbone_out_indices) == len(config.backbone_out_indices) == 4
    assert list(small.backbone_out_indices) == list(range(small.num_hidden_layers))[-4:]


def test_groups_shrink_with_the_channels() -> None:
    config = shrink(hf_config.from_type("mimi"))
    assert config.hidden_size % config.upsample_groups == 0


def test_layers_that_features_are_taken_from_exist() -> None:
    small = shrink(complete(hf_config.from_type("vipllava")))
    layers = small.vision_config.num_hidden_layers
    assert all(-layers <= each <= layers for each in small.vision_feature_layer)
    one = shrink(complete(hf_config.from_type("llava"))).vision_feature_layer
    assert isinstance(one, int)


def test_the_projector_begins_where_the_encoder_ends() -> None:
    config = complete(hf_config.from_type("granite_speech"))
    assert config.projector_config.encoder_hidden_size == config.encoder_config.hidden_dim
    heard = complete(hf_config.from_type("qwen3_asr"))
    assert heard.audio_config.output_dim == heard.text_config.hidden_size
