"""Configurations from types, files and the bundled set, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.errors import TargetError
from ebbtide.workloads import hf_config
from ebbtide.workloads.hf import TransformersModel
from ebbtide.workloads.stated import stated_dtype

BUNDLED = hf_config.bundled()


@pytest.mark.parametrize("identity", sorted(BUNDLED))
def test_a_bundled_model_has_its_published_size(identity: str) -> None:
    """Parameters as the authors state them: a wrong figure in the file shows here."""
    config = hf_config.from_fields(hf_config.bundled_fields(identity), identity)
    model = TransformersModel(config, identity)
    with torch.device("meta"):
        built = model.cls(model.config)
    millions = sum(p.numel() for p in built.parameters()) / 1e6
    assert millions == pytest.approx(BUNDLED[identity]["_params"], rel=1e-3)


def test_every_bundled_model_has_a_source_and_a_short_name() -> None:
    for identity, fields in BUNDLED.items():
        assert fields["_source"], identity
        assert fields["_short"] and all(s == s.lower() for s in fields["_short"]), identity


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("meta-llama/Meta-Llama-3-8B", "bf16"),
        ("mistralai/Mistral-7B-v0.1", "bf16"),
        ("Qwen/Qwen3-8B", "bf16"),
        ("microsoft/Phi-3-mini-4k-instruct", "bf16"),
        ("meta-llama/Llama-2-7b-hf", "fp16"),
        ("microsoft/phi-2", "fp16"),
        ("openai-community/gpt2", None),
        ("google-bert/bert-base-uncased", None),
    ],
)
def test_a_bundled_model_states_the_dtype_of_its_weights(name: str, dtype: str | None) -> None:
    assert stated_dtype(hf_config.from_fields(hf_config.bundled_fields(name), name)) == dtype


def test_short_names_are_unambiguous() -> None:
    names = [s for fields in BUNDLED.values() for s in fields["_short"]]
    assert len(names) == len(set(names))
    assert hf_config.bundled_id("Llama-3-70B") == "meta-llama/Meta-Llama-3-70B"
    assert hf_config.bundled_id("llama-9") is None


def test_our_notes_do_not_reach_transformers() -> None:
    fields = hf_config.bundled_fields("openai-community/gpt2")
    assert not [name for name in fields if name.startswith("_")]


def _load(path: str) -> Any:
    return hf_config.from_fields(hf_config.read(Path(path)), path)


def test_fields_are_kept(tiny: Callable[..., str]) -> None:
    config = _load(tiny(hidden_size=32))
    assert (config.model_type, config.hidden_size, config.vocab_size) == ("llama", 32, 320)


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_size_is_named(tiny: Callable[..., str], name: str) -> None:
    with pytest.raises(TargetError, match=f"does not state {name}"):
        _load(tiny(**{name: ...}))


def test_a_family_has_names_of_its_own(tiny: Callable[..., str]) -> None:
    path = tiny(model_type="gpt2", n_embd=32, n_head=2, num_hidden_layers=..., hidden_size=...)
    with pytest.raises(TargetError, match="does not state n_layer"):
        _load(path)


def test_no_model_type(tiny: Callable[..., str]) -> None:
    with pytest.raises(TargetError, match="no field 'model_type'.*It has architectures"):
        _load(tiny(model_type=...))


@pytest.mark.parametrize("model_type", [["llama"], 5, {}, True])
def test_a_model_type_that_is_no_name(tiny: Callable[..., str], model_type: Any) -> None:
    with pytest.raises(TargetError, match="where a name such as 'llama' is expected"):
        _load(tiny(model_type=model_type))


@pytest.mark.parametrize("architectures", [5, "LlamaForCausalLM", [5]])
def test_architectures_that_are_no_list_of_names(
    tiny: Callable[..., str], architectures: Any
) -> None:
    with pytest.raises(TargetError, match="where a list of class names is expected"):
        _load(tiny(architectures=architectures))
    assert _load(tiny(architectures=None)).model_type == "llama"


def test_an_unknown_model_type_offers_near_ones(tiny: Callable[..., str]) -> None:
    with pytest.raises(TargetError, match="'lama', which .* Near: .*llama"):
        _load(tiny(model_type="lama"))


def test_remote_code_is_named_and_not_run(tiny: Callable[..., str]) -> None:
    path = tiny(model_type="custom", auto_map={"AutoModelForCausalLM": "modeling_x.XForCausalLM"})
    with pytest.raises(TargetError, match=r"needs code of its own, modeling_x\.XForCausalLM"):
        _load(path)


def test_a_known_type_needs_no_remote_code(tiny: Callable[..., str]) -> None:
    assert _load(tiny(auto_map={"AutoModel": "modeling_x.X"})).model_type == "llama"


@pytest.mark.parametrize("value", ["wide", None, [64]])
def test_a_value_of_the_wrong_kind(tiny: Callable[..., str], value: Any) -> None:
    with pytest.raises(TargetError, match=r"config\.json is no usable llama configuration"):
        _load(tiny(hidden_size=value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "no JSON object but a list"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(TargetError, match=message):
        hf_config.read(path)


def test_a_type_without_a_default() -> None:
    with pytest.raises(TargetError, match=r"default configuration of 'nougat'.*Pass a config"):
        hf_config.from_type("nougat")
