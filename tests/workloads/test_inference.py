"""Prefill and decoding: what the cache holds, for each kind of cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.workloads.architectures import build, find
from ebbtide.workloads.inference import DECODED, Inference, generate, lengthen
from ebbtide.workloads.options import Lora, WorkloadOptions

BATCH, HEADS, WIDTH, LAYERS = 2, 2, 16, 2


def _cache(path: str, **settings: Any) -> Any:
    options = WorkloadOptions(batch=BATCH, inference=True, **settings)
    running = build(find(path, options)[0], options, "cpu")
    assert isinstance(running, Inference)
    inputs = running.architecture.make_inputs(options, BATCH, torch.device("cpu"))
    with torch.no_grad():
        return generate(running.model, inputs, options)


def test_a_pass_is_without_gradients(tiny: Callable[..., str]) -> None:
    options = WorkloadOptions(batch=BATCH, seq=8, inference=True)
    running = build(find(tiny(), options)[0], options, "cpu")
    running.step(0)
    assert not running.model.training
    assert all(p.grad is None for p in running.model.parameters())


@pytest.mark.parametrize("total", [8, 9, 10, 11, 12, 13, 40, 100])
def test_every_layer_holds_every_token(tiny: Callable[..., str], total: int) -> None:
    """Case P1: weights are not all; the cache is counted, key and value of each layer."""
    cache = _cache(tiny(), seq=8, kv_tokens=total)
    shapes = {tuple(t.shape) for layer in cache.layers for t in (layer.keys, layer.values)}
    assert shapes == {(BATCH, HEADS, total, WIDTH)} and len(cache.layers) == LAYERS


def test_without_a_length_the_cache_is_the_prompts(tiny: Callable[..., str]) -> None:
    assert _cache(tiny(), seq=8).layers[0].keys.shape[2] == 8


def test_adapters_do_not_bring_back_all_logits(tiny: Callable[..., str]) -> None:
    pytest.importorskip("peft")
    options = WorkloadOptions(batch=BATCH, seq=8, inference=True, lora=Lora(r=2))
    running = build(find(tiny(), options)[0], options, "cpu")
    seen: list[int] = []
    head = running.model.get_submodule("base_model.model.lm_head")
    head.register_forward_hook(lambda module, given, made: seen.append(made.shape[1]))
    running.step(0)
    assert seen == [1]


def test_a_sliding_window_bounds_the_cache(tiny: Callable[..., str]) -> None:
    """Case P33: full attention everywhere would be an estimate several times too large."""
    fields = {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "head_dim": WIDTH,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    windowed, full = _cache(tiny(**fields), seq=8, kv_tokens=64).layers
    assert windowed.keys.shape[2] == 15
    assert full.keys.shape[2] == 64


def test_latent_attention_is_cached_as_transformers_caches_it(tiny: Callable[..., str]) -> None:
    """Case P33: the latent and the rotary part, not keys and values of each head."""
    fields = {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    }
    for layer in _cache(tiny(**fields), seq=8, kv_tokens=32).layers:
        held = (layer.keys.numel() + layer.values.numel()) // (BATCH * 32)
        assert held == fields["kv_lora_rank"] + fields["qk_rope_head_dim"]


def test_a_state_of_fixed_size_does_not_grow(tiny: Callable[..., str]) -> None:
    fields = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "state_size": 4}
    sizes = []
    for total in (9, 90):
        cache = _cache(tiny(**fields), seq=8, kv_tokens=total)
        tensors = [
            state
            for layer in cache.layers
            for states in (layer.conv_states, layer.recurrent_states)
            for state in states.values()
        ]
        assert tensors
        sizes.append(sum(t.numel() for t in tensors))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("logits", "rows"), [("last", 1), ("all", 8)])
def test_logits_of_the_last_token_or_of_all(
    tiny: Callable[..., str], logits: str, rows: int
) -> None:
    """Case P14: an evaluation that asks for all logits holds batch x seq x vocabulary."""
    options = WorkloadOptions(batch=BATCH, seq=8, inference=True, logits=logits)
    running = build(find(tiny(), options)[0], options, "cpu")
    seen: list[torch.Size] = []
    running.model.register_forward_hook(lambda m, a, out: seen.append(out.logits.shape))
    running.step(0)
    assert seen == [torch.Size([BATCH, rows, 320])]


def test_decoding_is_short_however_long_the_cache(tiny: Callable[..., str]) -> None:
    options = WorkloadOptions(batch=BATCH, seq=8, inference=True, kv_tokens=120)
    running = build(find(tiny(), options)[0], options, "cpu")
    calls: list[int] = []
    running.model.register_forward_hook(lambda m, a, out: calls.append(1))
    running.step(0)
    assert len(calls) == 1 + 2 * DECODED


def test_a_model_that_does_not_decode_has_no_cache() -> None:
    options = WorkloadOptions(inference=True, kv_tokens=64)
    with pytest.raises(UsageError, match="^kv_tokens: resnet18 does not decode"):
        build(find("torchvision/resnet18", options)[0], options, "cpu")


@settings(max_examples=30)
@given(held=st.integers(1, 20), more=st.integers(0, 40), window=st.none() | st.integers(2, 30))
def test_a_cache_is_lengthened_up_to_its_window(held: int, more: int, window: int | None) -> None:
    class Layer:
        sliding_window = window
        keys = torch.ones(1, 1, held, 2)
        values = torch.ones(1, 1, held, 3)
        cumulative_length = held

    class Cache:
        layers = (Layer(),)

    lengthen(Cache(), more)
    layer = Cache.layers[0]
    room = more if window is None else max(0, min(more, window - 1 - held))
    assert layer.keys.shape[2] == layer.values.shape[2] == held + room
    assert layer.cumulative_length == held + more
