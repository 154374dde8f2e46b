"""One model of each family: built small, inputs made, forward and backward on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ebbtide.errors import TargetError, UsageError
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads import hf_config
from ebbtide.workloads.hf import TransformersModel
from ebbtide.workloads.hf_heads import model_class, task_of
from ebbtide.workloads.hf_inputs import inputs_for, loss_of
from ebbtide.workloads.hf_mend import complete
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.shrink import shrink
from ebbtide.workloads.training import Training

OPTIONS = WorkloadOptions(batch=2, optimizer="none")
TEXT = replace(OPTIONS, seq=12)


def _small(name: str, options: WorkloadOptions) -> TransformersModel:
    model = TransformersModel(shrink(complete(hf_config.from_type(name))), name)
    model.measure(options)
    return model


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("llama", {"input_ids", "labels"}),
        ("bert", {"input_ids", "labels"}),
        ("t5", {"input_ids", "labels"}),
        ("mixtral", {"input_ids", "labels"}),
        ("layoutlm", {"input_ids", "bbox", "labels"}),
        ("gemma3", {"input_ids", "pixel_values", "token_type_ids", "labels"}),
        ("llava", {"input_ids", "pixel_values", "labels"}),
        ("mistral3", {"input_ids", "pixel_values", "image_sizes", "labels"}),
        ("clip", {"input_ids", "pixel_values"}),
    ],
)
def test_text_and_what_goes_with_it(name: str, inputs: set[str]) -> None:
    model = _small(name, TEXT)
    given = model.make_inputs(TEXT, 2, torch.device("cpu"))
    assert inputs <= set(given)
    training = Training(model, TEXT, "cpu")
    training.step(0)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in training.model.parameters())


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("vit", "pixel_values"),
        ("swin", "pixel_values"),
        ("segformer", "pixel_values"),
        ("videomae", "pixel_values"),
        ("mask2former", "pixel_values"),
        ("wav2vec2", "input_values"),
        ("audio-spectrogram-transformer", "input_values"),
        ("informer", "past_values"),
        ("patchtst", "past_values"),
        ("decision_transformer", "states"),
    ],
)
def test_images_sound_and_series(name: str, main: str) -> None:
    model = _small(name, OPTIONS)
    given = model.make_inputs(OPTIONS, 2, torch.device("cpu"))
    assert given[main].shape[0] == 2
    training = Training(model, OPTIONS, "cpu")
    training.step(0)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in training.model.parameters())


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("gpt2", "GPT2LMHeadModel"),
        ("bert", "BertForMaskedLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("whisper", "WhisperForConditionalGeneration"),
        ("wav2vec2", "Wav2Vec2ForCTC"),
        ("detr", "DetrForObjectDetection"),
        ("clip", "CLIPModel"),
        ("vit", "ViTForImageClassification"),
        ("clip_text_model", "CLIPTextModel"),
    ],
)
def test_the_head_is_the_one_that_is_mostly_trained(name: str, cls: str) -> None:
    assert model_class(hf_config.from_type(name)).__name__ == cls


def test_a_configuration_decides_its_own_class() -> None:
    config = hf_config.from_type("bert")
    config.architectures = ["BertForSequenceClassification"]
    assert model_class(config).__name__ == "BertForSequenceClassification"
    assert task_of(model_class(config)) == ""


def test_a_part_without_a_model_says_so() -> None:
    with pytest.raises(TargetError, match="'sam_mask_decoder' but no model"):
        TransformersModel(hf_config.from_type("sam_mask_decoder"), "sam_mask_decoder")


def test_an_image_takes_as_many_tokens_as_the_model_makes_of_it() -> None:
    """Measured on a narrow copy, and then true of the wide one."""
    model = _small("llava", TEXT)
    given = model.make_inputs(TEXT, 2, torch.device("cpu"))
    marked = (given["input_ids"] == model.config.image_token_id).sum(dim=1)
    built = model.make_model(TEXT)
    features = built.get_image_features(given["pixel_values"]).pooler_output
    assert marked.tolist() == [f.shape[0] for f in features]


def test_images_of_another_size_move_the_position_embeddings() -> None:
    options = replace(OPTIONS, image=96)
    model = _small("vit", OPTIONS)
    built = model.make_model(options)
    given = model.make_inputs(options, 1, torch.device("cpu"))
    assert given["pixel_values"].shape[-2:] == (96, 96)
    assert built.vit.embeddings.position_embeddings.shape[1] == (96 // 16) ** 2 + 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit", TEXT, "^seq: vit reads no text"),
        ("gpt2", replace(TEXT, image=64), "^image: gpt2 reads no images"),
    ],
)
def test_an_option_that_does_not_apply(name: str, options: WorkloadOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _small(name, OPTIONS).make_model(options)


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_parameters_and_float_inputs_have_the_dtype(dtype: str, torch_dtype: torch.dtype) -> None:
    model = _small("vit", OPTIONS)
    options = replace(OPTIONS, dtype=dtype)
    assert {p.dtype for p in model.make_model(options).parameters()} == {torch_dtype}
    assert model.make_inputs(options, 1, torch.device("cpu"))["pixel_values"].dtype is torch_dtype
    mixed = replace(options, amp="bf16")
    assert model.make_inputs(mixed, 1, torch.device("cpu"))["pixel_values"].dtype is torch.float32


def test_the_sequence_fits_the_positions() -> None:
    assert TransformersModel(hf_config.from_type("bert"), "bert").default_seq() == 512
    assert TransformersModel(hf_config.from_type("roberta"), "roberta").default_seq() == 510
    config = hf_config.from_type("gpt2")
    config.n_positions = 64
    assert TransformersModel(config, "gpt2").default_seq() == 64


def test_inference_has_no_labels() -> None:
    model = _small("llama", TEXT)
    options = replace(TEXT, inference=True)
    assert set(model.make_inputs(options, 1, torch.device("cpu"))) == {"input_ids"}


def test_an_input_that_no_rule_makes_is_named() -> None:
    model = TransformersModel(hf_config.from_type("sam2_video"), "sam2_video")
    with pytest.raises(TargetError, match="needs the input 'inference_session'"):
        model.make_inputs(OPTIONS, 1, torch.device("cpu"))


def test_a_loss_is_the_models_own_or_all_that_it_returned() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert loss_of((weight * 2, [weight], {"a": weight.long()})).item() == 6
    with pytest.raises(ValueError, match="nothing that depends on its parameters"):
        loss_of({"a": torch.ones(2)})


def test_ordinary_tokens_are_never_placeholders() -> None:
    model = _small("gemma3", TEXT)
    request = model._request(TEXT, 4, torch.device("cpu"))
    ids = inputs_for(model.cls, request)["input_ids"]
    special = {model.config.boi_token_index, model.config.eoi_token_index}
    assert not special & set(ids.unique().tolist())


def test_a_question_is_marked_and_known_on_a_virtual_gpu() -> None:
    model = _small("splinter", TEXT)
    ids = model.make_inputs(TEXT, 2, torch.device("cpu"))["input_ids"]
    assert (ids[:, 0] == model.config.question_token_id).all()
    with VirtualGpu("l4"):
        Training(model, TEXT, "cuda").step(0)
