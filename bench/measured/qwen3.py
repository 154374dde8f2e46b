"""The `qwen3-*` rows: what is allocated at the end of decoding 2,048 tokens.

The source (QwenLM/Qwen3, speed benchmark) used Transformers 4.51.3. Decoding 2,048 tokens
one by one changes only the length of the cache, so the rebuilt run fills the prompt, lengthens
the cache to two tokens before the end, and decodes these two. `peak` is that of `generate()`:
the prompt's forward pass, or the last token's, whichever is higher.

FP8 and AWQ checkpoints store the linear layers of the blocks packed, embedding and head in
16 bits; only what they store is modelled here, not the library's own temporaries.
"""

from __future__ import annotations

import gc
import math
from typing import Any

import torch
from torch import Tensor, nn

from .meter import Meter
from .rows import Row, read_configs

GENERATED = 2048
FP8_BLOCK = 128
AWQ_GROUP = 128


class Fp8Linear(nn.Module):
    """Weight (out, in) in e4m3 with a float scale a block of 128 x 128."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        blocks = (math.ceil(d_out / FP8_BLOCK), math.ceil(d_in / FP8_BLOCK))
        self.weight = nn.Parameter(
            torch.empty(d_out, d_in, dtype=torch.float8_e4m3fn), requires_grad=False
        )
        self.scale = nn.Parameter(torch.empty(blocks), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return x.new_empty(*x.shape[:-1], self.weight.shape[0])


class AwqLinear(nn.Module):
    """Four-bit weights packed by eight into int32, with zeros and scales a group of 128."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        groups = d_in // AWQ_GROUP
        self.d_out = d_out
        self.register_buffer("qweight", torch.empty(d_in, d_out // 8, dtype=torch.int32))
        self.register_buffer("qzeros", torch.empty(groups, d_out // 8, dtype=torch.int32))
        self.register_buffer("scales", torch.empty(groups, d_out, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return x.new_empty(*x.shape[:-1], self.d_out)


class PackedExperts(nn.Module):
    """All experts of a layer in e4m3, with their scales; passes on what comes in."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        for name, p in list(experts.named_parameters()):
            packed = torch.empty(p.shape, dtype=torch.float8_e4m3fn)
            blocks = [p.shape[0], *(math.ceil(side / FP8_BLOCK) for side in p.shape[1:])]
            self.register_parameter(name, nn.Parameter(packed, requires_grad=False))
            self.register_buffer(f"{name}_scale", torch.empty(blocks))

    def forward(self, hidden: Tensor, *routing: Tensor) -> Tensor:
        """(tokens, d) to the same."""
        return torch.empty_like(hidden)


def build(row: Row, device: torch.device, **smaller: int) -> nn.Module:
    """The row's model on `device`, without weights; `smaller` overrides configuration fields."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields: dict[str, Any] = dict(read_configs()[row.model.removeprefix("Qwen/")], **smaller)
    fields.pop("architectures", None)
    # What serves as the longest prompt in these rows is longer than the class's default.
    config = AutoConfig.for_model(fields.pop("model_type"), max_position_embeddings=40960, **fields)
    dtype = torch.float16 if row.precision.startswith("AWQ") else torch.bfloat16
    with torch.device(device):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.eval().requires_grad_(False)
        if row.precision != "BF16":
            _pack(model, AwqLinear if row.precision.startswith("AWQ") else Fp8Linear)
    return model


def _pack(model: nn.Module, kind: type[Fp8Linear] | type[AwqLinear]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                setattr(parent, name, kind(child.in_features, child.out_features))
            elif name == "experts" and any(True for _ in child.parameters(recurse=False)):
                setattr(parent, name, PackedExperts(child))


def decode(
    model: nn.Module, prompt: int, device: torch.device, meter: Meter, generated: int = GENERATED
) -> None:
    """Fill `prompt` tokens, then the last two of `generated`."""
    from transformers import DynamicCache

    meter.reset_peak()
    with torch.inference_mode():
        cache: Any = DynamicCache(config=model.config)
        ids = torch.randint(0, 1000, (1, prompt)).to(device)
        out = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        del out
        _lengthen(cache, prompt + generated - 2)
        for _ in range(2):
            out = model(input_ids=token, cache=cache, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            del out
        gc.collect()  # what only a cycle of Python objects holds goes at some time or other
        meter.note("end of decoding", meter.allocated())


def _lengthen(cache: Any, length: int) -> None:
    """Let every layer of `cache` hold `length` tokens."""
    for layer in cache.layers:
        for name in ("keys", "values"):
            old = getattr(layer, name)
            setattr(layer, name, old.new_empty(*old.shape[:-2], length, old.shape[-1]))
