"""Inference: one forward pass, or for language models a prefill and decoding."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ebbtide.errors import UsageError
from ebbtide.trace.model import Category
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.architecture import DTYPES, Architecture
from ebbtide.workloads.lora import add_lora
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.quantize import quantize

# Tokens decoded one by one after the prefill, and again at the end.
DECODED = 2
CACHE_NAMES = ("cache", "past_key_values", "cache_params")


class Inference:
    """A model that answers requests, `batch` of them at once.

    A causal language model first reads prompts of `options.seq` tokens and then decodes
    until each request holds `options.kv_tokens`. The middle of the decoding is skipped:
    the cache is lengthened in one piece, so that the last tokens are decoded with all of
    it, which is where the peak is.

    Args:
        architecture: what to build.
        options: how; `options.batch` falls back to 1, one request.
        device: where.

    Raises:
        TargetError: the architecture cannot be built.
        UsageError: an option that this model does not have.
    """

    optimizer: torch.optim.Optimizer | None = None

    def __init__(
        self, architecture: Architecture, options: WorkloadOptions, device: torch.device | str
    ) -> None:
        self.architecture = architecture
        self.options = options
        self.device = torch.device(device)
        self.batch = options.batch or 1
        if options.kv_tokens is not None and not architecture.decodes():
            raise UsageError(
                f"kv_tokens: {architecture.name} does not decode with a cache. Leave it away."
            )
        model = architecture.make_model(options)
        if options.quantize is not None:
            quantize(model, options.quantize, DTYPES[options.dtype])
        model.to(self.device)
        if options.lora is not None:
            model = add_lora(model, options.lora)
        self.model: nn.Module = model.eval()

    def step(self, i: int) -> None:
        """One pass: the forward call, or prefill and decoding."""
        with torch.no_grad(), self._autocast():
            inputs = self.architecture.make_inputs(self.options, self.batch, self.device)
            if self.architecture.decodes():
                generate(self.model, inputs, self.options)
            else:
                self.architecture.outputs(self.model, inputs)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.options.amp is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.options.amp])


def generate(model: nn.Module, inputs: Mapping[str, Any], options: WorkloadOptions) -> Any:
    """Prefill with `inputs`, decode up to `options.kv_tokens`, and return the cache."""
    prompt = dict(inputs)
    if options.logits == "last":
        prompt |= _last_logits_only(model)
    outputs = model(**prompt, use_cache=True)
    cache, name = _cache_of(outputs)
    del outputs
    if cache is None or options.kv_tokens is None:
        return cache
    held = inputs["input_ids"].shape[1]
    token = inputs["input_ids"][:, -1:]
    total = options.kv_tokens
    for position in range(held, min(held + DECODED, total)):
        cache = _decode(model, token, cache, name, position)
        held += 1
    if held + DECODED < total:
        lengthen(cache, total - held - DECODED)
        held = total - DECODED
    for position in range(held, total):
        cache = _decode(model, token, cache, name, position)
    return cache


def _last_logits_only(model: nn.Module) -> dict[str, Any]:
    # A model with adapters hands on whatever it is called with.
    base = getattr(model, "get_base_model", lambda: model)()
    taken = inspect.signature(type(base).forward).parameters
    return {"logits_to_keep": 1} if "logits_to_keep" in taken else {}


def _cache_of(outputs: Any) -> tuple[Any, str]:
    for name in CACHE_NAMES:
        value = getattr(outputs, name, None)
        if value is not None:
            return value, name
    return None, ""


def _decode(model: nn.Module, token: Tensor, cache: Any, name: str, position: int) -> Any:
    return _cache_of(model(input_ids=token, use_cache=True, **{name: cache}))[0]


def lengthen(cache: Any, tokens: int) -> None:
    """Let each layer of `cache` hold `tokens` more, or what its window allows.

    Layers whose state has a fixed size (state-space models) stay as they are.
    """
    for layer in getattr(cache, "layers", ()):
        window = getattr(layer, "sliding_window", None)
        for name in ("keys", "values", "indexer_keys"):
            held = getattr(layer, name, None)
            if not isinstance(held, Tensor) or held.ndim < 3:
                continue
            room = tokens if window is None else min(tokens, max(0, window - 1 - held.shape[-2]))
            if room:
                more = held.new_zeros(*held.shape[:-2], room, held.shape[-1])
                longer = torch.cat([held, more], dim=-2)
                VirtualGpu.mark(longer, Category.KV_CACHE)
                setattr(layer, name, longer)
                del held, more, longer
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length += tokens
