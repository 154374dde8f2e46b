"""Small configurations, and torchvision where its compiled half does not load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.workloads.torchvision_mend import mend_torchvision

TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}


# Before a test module imports Transformers, which imports torchvision where it can.
mend_torchvision()


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., str]:
    """Write a config.json of a tiny Llama, with fields changed, and return its path."""

    def write(**fields: Any) -> str:
        path = tmp_path / "config.json"
        held = {k: v for k, v in {**TINY_LLAMA, **fields}.items() if v is not ...}
        path.write_text(json.dumps(held))
        return str(path)

    return write
