"""The `peft-mm-*` rows: adapters on Llama-3.2-3B, trained and evaluated.

The source (huggingface/peft, method_comparison/MetaMathQA/run.py @ 026d1e01) trains on
batches of four sequences of varying length, at most 768, and generates for 50 at a time
with a static cache of 768 tokens; the row has the largest reserve of both. Which lengths
met in a batch is not known: assumed are training steps of growing length up to 768, with
`empty_cache` before the last as every tenth step has it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .meter import Meter
from .rows import Row, read_configs

LENGTHS = (300, 500, 768)
EVAL_BATCH = 50
LONGEST = 768
_MLP = ["down_proj", "gate_proj", "up_proj"]

# What adapter_config.json of each experiment says beyond PEFT's defaults, as PEFT 0.21 names it
# (method_comparison/MetaMathQA/experiments/*/adapter_config.json @ 026d1e01).
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ia3": ("IA3Config", {}),
    "ln_tuning": ("LNTuningConfig", {}),
    "loha": ("LoHaConfig", {"r": 32, "target_modules": ["q_proj", "v_proj"]}),
    "lokr": (
        "LoKrConfig",
        {"r": 32, "decompose_factor": 4, "target_modules": ["q_proj", "v_proj"]},
    ),
    "lora--llama-3.2-3B-rank10-target-mlp": ("LoraConfig", {"r": 10, "target_modules": _MLP}),
    "lora--llama-3.2-3B-rank32": ("LoraConfig", {"r": 32}),
    "lora--llama-3.2-3B-rank64": ("LoraConfig", {"r": 64}),
    "prefixtuning": ("PrefixTuningConfig", {"num_virtual_tokens": 50}),
    "prompt_tuning": ("PromptTuningConfig", {"num_virtual_tokens": 200}),
    "vera": ("VeraConfig", {}),
}


def adapter(row: Row) -> Any | None:
    """PEFT's configuration for the row; None for full fine-tuning.

    Raises:
        KeyError: the row's method is not in the table.
    """
    import peft

    method = row.id.removeprefix("peft-mm-")
    if method.startswith("full-finetuning"):
        return None
    key = next((key for key in ADAPTERS if method.startswith(key)), None)
    if method.startswith("boft"):
        raise KeyError("PEFT compiles a CUDA extension for BOFT when it is used")
    if key is None:
        raise KeyError(f"no adapter configuration for {row.id}")
    name, options = ADAPTERS[key]
    return getattr(peft, name)(task_type="CAUSAL_LM", **options)


def build(row: Row, device: torch.device, **smaller: int) -> nn.Module:
    """Llama-3.2-3B in bf16 with the row's adapter, whose weights PEFT keeps in fp32."""
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(read_configs()["meta-llama/Llama-3.2-3B-Instruct"], **smaller)
    fields.pop("architectures", None)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    settings = adapter(row)
    with torch.device(device):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        if settings is not None:
            model = get_peft_model(model, settings)  # type: ignore[arg-type]
    return model.to(device)


def train(model: nn.Module, row: Row, device: torch.device, meter: Meter) -> None:
    """Steps of `LENGTHS`, then one generated token for the evaluation's batch."""
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.1)
    model.train()
    for length in LENGTHS:
        ids = torch.randint(0, 1000, (row.batch or 1, length)).to(device)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
        optimizer.zero_grad()
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    meter.note("peak of training", meter.peak())
    del outputs, loss, batch, ids
    _evaluate(model, device)


def _evaluate(model: nn.Module, device: torch.device) -> None:
    """A prompt and two tokens for `EVAL_BATCH` sequences, with the cache's full length held."""
    from transformers import StaticCache

    model.eval()
    prompt = LONGEST // 3
    with torch.inference_mode():
        cache = StaticCache(config=model.config, max_cache_len=LONGEST)  # type: ignore[arg-type]
        ids = torch.randint(0, 1000, (EVAL_BATCH, prompt)).to(device)
        for _ in range(2):
            mask = torch.ones_like(ids)
            out = model(input_ids=ids, attention_mask=mask, cache=cache, logits_to_keep=1)
            ids = out.logits[:, -1:].argmax(-1)
