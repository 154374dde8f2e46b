"""The line that says with which settings an architecture is predicted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.workloads.assumed import _OPTIMIZERS, assumed
from ebbtide.workloads.options import OPTIMIZERS, Lora, WorkloadOptions

TEXT: Any = SimpleNamespace(
    reads_text=lambda: True, default_seq=lambda: 512, origin="bundled meta-llama/Llama-3.1-8B"
)
IMAGES: Any = SimpleNamespace(default_image=lambda: 224, origin="timm's resnet50")
WEIGHTS: Any = SimpleNamespace()  # of a model that is not known


@pytest.mark.parametrize(
    ("architecture", "settings", "line"),
    [
        (
            TEXT,
            {},
            "training, batch 8, 512 tokens, float32, AdamW; "
            "configuration: bundled meta-llama/Llama-3.1-8B",
        ),
        (
            IMAGES,
            {"amp": "bf16", "optimizer": "momentum", "grad_accum": 4, "checkpointing": True},
            "training, batch 8, 224 pixels, float32, autocast bfloat16, SGD with momentum, "
            "4 batches a step, checkpointing; configuration: timm's resnet50",
        ),
        (
            TEXT,
            {"inference": True, "kv_tokens": 9000, "dtype": "bf16", "seq": 64, "quantize": "nf4"},
            "inference, 8 requests, cache of 9000 tokens each, prompt of 64 tokens, bfloat16, "
            "nf4 weights; configuration: bundled meta-llama/Llama-3.1-8B",
        ),
        (
            IMAGES,
            {"image": 384, "lora": Lora(r=16), "dtype": "fp16"},
            "training, batch 8, 384 pixels, float16, AdamW, LoRA of rank 16; "
            "configuration: timm's resnet50",
        ),
        (WEIGHTS, {"inference": True, "dtype": "bf16"}, "inference, 8 requests, bfloat16"),
    ],
)
def test_every_setting_that_sizes_something(
    architecture: Any, settings: dict[str, Any], line: str
) -> None:
    assert assumed(architecture, WorkloadOptions(**settings), 8) == line


def test_one_request() -> None:
    said = assumed(TEXT, WorkloadOptions(inference=True), 1)
    assert said.startswith("inference, 1 request, prompt of 512 tokens")


def test_every_optimizer_has_a_name() -> None:
    assert set(_OPTIMIZERS) == set(OPTIMIZERS)
