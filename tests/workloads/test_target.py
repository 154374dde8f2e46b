"""What TARGET means, and what cannot be said about which target."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import TargetError, UsageError
from ebbtide.workloads.batches import PLACEHOLDER
from ebbtide.workloads.options import Lora, WorkloadOptions
from ebbtide.workloads.target import resolve

# A value that differs from the default, for each option but `batch`.
OTHERS: dict[str, Any] = {
    "seq": 8,
    "image": 32,
    "dtype": "bf16",
    "amp": "bf16",
    "optimizer": "sgd",
    "optimizer_kind": "fused",
    "optimizer_in_backward": True,
    "grad_accum": 2,
    "checkpointing": True,
    "lora": Lora(r=4),
    "logits": "all",
    "loss": "chunked",
    "inference": True,
    "steps": 5,
}
OTHERS |= {"quantize": "int8", "kv_tokens": 9}


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('never run here')")
    return str(path)


def test_every_option_is_in_the_table_above() -> None:
    assert {field.name for field in fields(WorkloadOptions)} == {"batch", *OTHERS}


def test_a_script_with_its_batch_among_the_arguments(script: str) -> None:
    made = resolve(script, args=("--lr", "1", "--batch", "8"), curve=False, seconds=7)
    assert (made.kind, made.target, made.batch) == ("script", script, 8)
    assert made.args == ("--lr", "1", "--batch", PLACEHOLDER)
    assert (made.curve, made.seconds) == (False, 7)


def test_the_batch_option_goes_before_the_scripts_own(script: str) -> None:
    made = resolve(script, args=("--batch", "8"), options=WorkloadOptions(batch=3))
    assert (made.batch, made.args) == (3, ("--batch", PLACEHOLDER))


def test_a_batch_that_no_argument_has_is_for_the_loaders(script: str) -> None:
    made = resolve(script, args=("--lr", "1"), options=WorkloadOptions(batch=3))
    assert (made.batch, made.args) == (3, ("--lr", "1"))


def test_the_placeholder_says_where_the_batch_is(script: str) -> None:
    made = resolve(script, args=(f"--n={PLACEHOLDER}",), options=WorkloadOptions(batch=3))
    assert (made.batch, made.args) == (3, (f"--n={PLACEHOLDER}",))
    with pytest.raises(UsageError, match="--batch N"):
        resolve(script, args=(f"--n={PLACEHOLDER}",))


def test_a_script_without_any_batch(script: str) -> None:
    assert resolve(script).batch is None


def test_a_missing_script_names_its_neighbours(script: str) -> None:
    with pytest.raises(TargetError, match=r"trian\.py'.*train\.py"):
        resolve(script.replace("train", "trian"))
    with pytest.raises(TargetError, match="There is no file 'nowhere/x.py'"):
        resolve("nowhere/x.py")


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "dir.py").mkdir()
    with pytest.raises(TargetError, match=r"dir\.py' is a folder"):
        resolve(str(tmp_path / "dir.py"))


def test_an_empty_target_is_not_the_working_directory() -> None:
    with pytest.raises(TargetError, match="The target is empty"):
        resolve("")


@pytest.mark.parametrize("option", OTHERS)
def test_options_of_architectures_are_refused_for_scripts(script: str, option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} does nothing here"):
        resolve(script, options=WorkloadOptions(**{option: OTHERS[option]}))


def test_a_function(script: str) -> None:
    made = resolve("pkg.mod:build", options=WorkloadOptions(batch=4, inference=True))
    assert (made.kind, made.batch, made.options.inference) == ("function", 4, True)
    with pytest.raises(UsageError, match="--seq does nothing here: pkg.mod:build builds"):
        resolve("pkg.mod:build", options=WorkloadOptions(seq=4))
    assert resolve(f"{script}:build").kind == "function"


@pytest.mark.parametrize("target", ["gpt2", "org/model", "timm/resnet50", "a:b c", ":x", "x.json"])
def test_everything_else_is_an_architecture(target: str) -> None:
    options = WorkloadOptions(seq=9, batch=2)
    made = resolve(target, options=options)
    assert (made.kind, made.batch, made.options) == ("architecture", 2, options)


@pytest.mark.parametrize("target", ["gpt2", "config.json", "m.safetensors"])
def test_a_cache_means_inference(target: str) -> None:
    assert resolve(target, options=WorkloadOptions(kv_tokens=9)).options.inference


@pytest.fixture(params=["folder", "m.safetensors"])
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"")  # a header is read later
    return str(path.parent if request.param == "folder" else path)


def test_a_checkpoint_is_for_inference(checkpoint: str) -> None:
    assert resolve(checkpoint).options == WorkloadOptions(inference=True)
    found = resolve(checkpoint, options=WorkloadOptions(quantize="nf4", seq=9)).options
    assert found == WorkloadOptions(quantize="nf4", seq=9, inference=True)


@pytest.mark.parametrize("option", ["optimizer", "grad_accum", "checkpointing", "lora"])
def test_a_checkpoint_is_trained_where_an_option_says_so(checkpoint: str, option: str) -> None:
    asked = WorkloadOptions(**{option: OTHERS[option]})
    assert resolve(checkpoint, options=asked).options == asked


def test_quantised_weights_are_not_trained_alone(checkpoint: str) -> None:
    asked = WorkloadOptions(quantize="int8", optimizer="sgd")
    for target, options in (("gpt2", WorkloadOptions(quantize="int8")), (checkpoint, asked)):
        with pytest.raises(UsageError, match="int8 weights have no gradient"):
            resolve(target, options=options)


def test_a_configuration_alone_is_trained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not resolve(str(tmp_path)).options.inference


def test_a_saved_trace_is_as_it_is() -> None:
    assert resolve("run.trace").kind == "trace"
    with pytest.raises(UsageError, match=r"--batch does nothing here: run.trace is a saved trace"):
        resolve("run.trace", options=WorkloadOptions(batch=3))


@pytest.mark.parametrize("target", ["gpt2", "m:f", "run.trace"])
def test_only_scripts_take_arguments(target: str) -> None:
    with pytest.raises(UsageError, match="is no script.*'--lr 1'"):
        resolve(target, args=("--lr", "1"))


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("python train.py")
    with pytest.raises(TargetError, match=r"train\.sh' is a file of an unknown kind"):
        resolve(str(path))


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_time_is_positive(script: str, seconds: float) -> None:
    with pytest.raises(UsageError, match="--seconds: expected a time above zero"):
        resolve(script, seconds=seconds)
