"""The `litgpt-*` rows on one GPU, with Transformers' equivalents of the models.

The source (Lightning-AI/litgpt @ 86418220, tutorials/resource-tables.md) measured its own
model code; the widths below are of the published configurations. Fine-tuning: LoRA of rank 8
on query and value, one micro-batch of the longest Alpaca sample. Inference: 50 new tokens.
bitsandbytes' NF4 packs two weights a byte, with a float scale for 64 weights; "dq" packs the
scales too, a byte each with a float for 256 (bitsandbytes 0.41, functional.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .meter import Meter
from .rows import Row

PROMPT = 10
GENERATED = 50
_BLOCK, _BLOCK_OF_SCALES = 64, 256

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi-1.5": (
        "phi",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "vocab_size": 51200,
            "partial_rotary_factor": 0.5,
        },
    ),
    "StableLM Alpha": (
        "gpt_neox",
        {
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "vocab_size": 50688,
        },
    ),
    "Llama 2 7": (
        "llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 32000,
        },
    ),
    "Llama 2 13": (
        "llama",
        {
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "vocab_size": 32000,
        },
    ),
    "Falcon 40": (
        "falcon",
        {
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
    ),
}
TARGETS = {
    "phi": ["q_proj", "v_proj"],
    "gpt_neox": ["query_key_value"],
    "llama": ["q_proj", "v_proj"],
}


class Nf4Linear(nn.Linear):
    """A frozen linear layer that keeps four bits a weight and unpacks them for each use."""

    def __init__(self, layer: nn.Linear, *, packed_scales: bool) -> None:
        super().__init__(1, 1, bias=False)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        count = layer.weight.numel()
        packed = torch.empty(count // 2, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        scales = -(-count // _BLOCK)
        self.register_buffer(
            "scales", torch.empty(scales, dtype=torch.uint8 if packed_scales else torch.float32)
        )
        if packed_scales:
            self.register_buffer("scales_of_scales", torch.empty(-(-scales // _BLOCK_OF_SCALES)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out), through an unpacked copy of the weight."""
        return _Unpacked.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]


class _Unpacked(torch.autograd.Function):
    """Multiply by a weight that is unpacked in forward, and again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Nf4Linear) -> Tensor:
        ctx.layer = layer
        return nn.functional.linear(x, _weight(x, layer), layer.bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ _weight(grads[0], ctx.layer), None


def _weight(x: Tensor, layer: Nf4Linear) -> Tensor:
    return x.new_empty(layer.out_features, layer.in_features)


def build(row: Row, device: torch.device, **smaller: int) -> nn.Module:
    """The row's model in bf16 on `device`, packed where the row says so, with LoRA where it trains.

    Raises:
        KeyError: the row's model is not in the table.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, fields = next(value for key, value in MODELS.items() if row.model.startswith(key))
    config = AutoConfig.for_model(kind, **{**fields, **smaller})
    with torch.device(device):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        if "nf4" in row.precision:
            _pack(model, packed_scales="dq" in row.precision)
        if "-LoRA-" in row.id:
            lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=TARGETS[kind])
            model = get_peft_model(model, lora, autocast_adapter_dtype=False)  # type: ignore
            return model.bfloat16()
    return model.requires_grad_(False)


def _pack(model: nn.Module, *, packed_scales: bool) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name not in ("lm_head", "embed_out"):
                setattr(parent, name, Nf4Linear(child, packed_scales=packed_scales))


def finetune(model: nn.Module, row: Row, device: torch.device, meter: Meter) -> None:
    """Two micro-batches and a step, twice."""
    meter.reset_peak()  # litgpt packs each layer as it makes it
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=3e-4, weight_decay=0.01)
    model.train()
    for _ in range(2):
        for _ in range(2):
            ids = torch.randint(0, 1000, (row.batch or 1, row.seq)).to(device)
            loss = model(input_ids=ids, labels=ids).loss
            (loss / 128).backward()
        optimizer.step()
        optimizer.zero_grad()


def generate(model: nn.Module, device: torch.device, meter: Meter) -> None:
    """A short prompt, and the last of 50 tokens."""
    from transformers import DynamicCache

    model.eval()
    meter.reset_peak()
    with torch.inference_mode():
        cache = DynamicCache(config=model.config)  # type: ignore[arg-type]
        for length in (PROMPT + GENERATED, 1):
            ids = torch.randint(0, 1000, (1, length)).to(device)
            model(input_ids=ids, cache=cache, use_cache=True)
