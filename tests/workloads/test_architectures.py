"""What a TARGET means, and what is said where it means nothing."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ebbtide.errors import TargetError, UsageError
from ebbtide.workloads.architectures import build, find
from ebbtide.workloads.hf import ChunkedModel, TransformersModel
from ebbtide.workloads.inference import Inference
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.training import Training
from ebbtide.workloads.vision import TimmModel, TorchvisionModel

PLAIN = WorkloadOptions()


@pytest.mark.parametrize(
    ("target", "kind", "cls"),
    [
        ("gpt2", TransformersModel, "GPT2LMHeadModel"),
        ("bert", TransformersModel, "BertForMaskedLM"),
        ("vit", TransformersModel, "ViTForImageClassification"),
        ("llama-3-8b", TransformersModel, "LlamaForCausalLM"),
        ("meta-llama/Meta-Llama-3-8B", TransformersModel, "LlamaForCausalLM"),
        ("QWEN/qwen2.5-7b", TransformersModel, "Qwen2ForCausalLM"),
        ("resnet50", TorchvisionModel, None),
        ("torchvision/resnet50", TorchvisionModel, None),
        ("timm/resnet50.a1_in1k", TimmModel, None),
        ("convnextv2_nano", TimmModel, None),
    ],
)
def test_a_name_is_found(target: str, kind: type, cls: str | None) -> None:
    architecture, options = find(target, PLAIN)
    assert type(architecture) is kind and options == PLAIN
    if cls is not None:
        assert isinstance(architecture, TransformersModel)
        assert architecture.cls.__name__ == cls


def test_an_unknown_name_offers_near_ones() -> None:
    with pytest.raises(TargetError, match=r"no script, file, model type.*'lama'.*Near: .*llama"):
        find("lama", PLAIN)
    with pytest.raises(TargetError, match=r"'resnet5o'.*Near: .*resnet50"):
        find("resnet5o", PLAIN)


def test_a_hub_id_offline_says_what_to_pass() -> None:
    with pytest.raises(TargetError, match=r"hub cannot be reached.*Pass the path of its config"):
        find("nobody/has-this-model", PLAIN)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(TargetError, match=r"no file 'gone\.json'"):
        find("gone.json", PLAIN)


def test_a_folder_with_a_configuration_alone(tiny: Callable[..., str]) -> None:
    folder = str(Path(tiny()).parent)
    architecture, _ = find(folder, PLAIN)
    assert architecture.name == folder
    assert isinstance(architecture, TransformersModel)
    assert architecture.config.hidden_size == 64


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"holds no \.safetensors file and no config\.json"):
        find(str(tmp_path), PLAIN)


def test_chunked_loss_is_a_kind_of_its_own(tiny: Callable[..., str]) -> None:
    assert type(find(tiny(), WorkloadOptions(loss="chunked"))[0]) is ChunkedModel


def test_training_or_inference(tiny: Callable[..., str]) -> None:
    path = tiny()
    options = WorkloadOptions(batch=2, seq=8)
    training = build(find(path, options)[0], options, "cpu")
    assert isinstance(training, Training) and training.optimizer is not None
    options = WorkloadOptions(batch=2, seq=8, inference=True)
    inference = build(find(path, options)[0], options, "cpu")
    assert isinstance(inference, Inference) and inference.optimizer is None


@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_for_inference_a_configuration_says_the_dtype(tiny: Callable[..., str], field: str) -> None:
    path = tiny(**{field: "bfloat16"})
    assert find(path, WorkloadOptions(inference=True))[1].dtype == "bf16"
    assert find(path, WorkloadOptions(inference=True, dtype="fp32"))[1].dtype == "fp32"
    architecture, options = find(path, PLAIN)
    assert options == PLAIN and isinstance(architecture, TransformersModel)
    said = "Weights taken as float32; the configuration says bfloat16 (--dtype bf16)"
    assert architecture.notes == {"dtype": said}
    assert find(path, WorkloadOptions(dtype="bf16"))[0].notes == {}  # type: ignore[attr-defined]


class TestCheckpoint:
    """A folder with weights decides their dtype and format; only headers are read."""

    def test_the_stored_dtype_is_taken(self, tiny: Callable[..., str]) -> None:
        folder = Path(tiny()).parent
        save_file({"w": torch.zeros(8, 8, dtype=torch.bfloat16)}, folder / "m.safetensors")
        _, options = find(str(folder), WorkloadOptions(inference=True))
        assert options.dtype == "bf16" and options.quantize is None

    def test_another_dtype_is_taken_where_it_is_asked_for(self, tiny: Callable[..., str]) -> None:
        folder = Path(tiny(dtype="float16")).parent
        save_file({"w": torch.zeros(8, 8, dtype=torch.bfloat16)}, folder / "m.safetensors")
        for asked in ("fp32", "fp16"):
            _, options = find(str(folder), WorkloadOptions(inference=True, dtype=asked))
            assert options.dtype == asked

    def test_an_8_bit_checkpoint_stays_so(self, tiny: Callable[..., str]) -> None:
        folder = Path(tiny()).parent
        weights = {
            "w": torch.zeros(64, 64, dtype=torch.float8_e4m3fn),
            "norm": torch.zeros(8, dtype=torch.bfloat16),
        }
        save_file(weights, folder / "m.safetensors")
        _, options = find(str(folder), WorkloadOptions(inference=True))
        assert (options.dtype, options.quantize) == ("bf16", "fp8")

    def test_weights_alone_are_placed_as_stored(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.int8)}, path)
        options = WorkloadOptions(inference=True)
        architecture, options = find(str(path), options)
        running = build(architecture, options, "cpu")
        running.step(0)
        held = sum(p.numel() * p.element_size() for p in running.model.parameters())
        assert held == 3 * 5 * 4 + 7

    def test_weights_alone_are_not_trained(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        save_file({"a": torch.zeros(3)}, path)
        architecture, options = find(str(path), PLAIN)
        with pytest.raises(UsageError, match="only its weights can be placed, for inference"):
            build(architecture, options, "cpu")

    def test_weights_are_never_read(self, tmp_path: Path) -> None:
        """A header that promises a terabyte, and nothing behind it."""
        path = tmp_path / "m.safetensors"
        entry = {"dtype": "BF16", "shape": [1 << 20, 1 << 19], "data_offsets": [0, 1 << 40]}
        header = json.dumps({"big": entry}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        _, options = find(str(path), WorkloadOptions(inference=True))
        assert options.dtype == "bf16"


# -- without a library


def test_torchvision_needs_nothing_else_and_what_is_missing_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['transformers'] = sys.modules['timm'] = None\n"
        "from ebbtide.workloads.architectures import build, find\n"
        "from ebbtide.workloads.options import WorkloadOptions\n"
        "options = WorkloadOptions(batch=1, image=32)\n"
        "for name in ('torchvision/resnet18', 'resnet18'):\n"
        "    build(find(name, options)[0], options, 'cpu')\n"
        "find('gpt2', options)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    last = done.stderr.splitlines()[-1]
    assert "no script, file, model type, torchvision or timm model 'gpt2'" in last
    assert "Transformers is not installed" in last
    assert "pip install 'ebbtide[vision]'" in last
