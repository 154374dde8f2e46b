"""Each option is checked when it is set, and the message names it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.workloads.options import (
    AMP_DTYPES,
    DTYPES,
    OPTIMIZERS,
    QUANTIZATIONS,
    Lora,
    WorkloadOptions,
)


def test_defaults_leave_sizes_to_the_architecture() -> None:
    options = WorkloadOptions()
    assert (options.batch, options.seq, options.image, options.kv_tokens) == (None,) * 4
    assert (options.dtype, options.amp, options.optimizer) == (None,) * 3
    assert options.of_training() == ()


@pytest.mark.parametrize("name", ["batch", "seq", "image", "grad_accum", "steps"])
@given(value=st.integers(max_value=0))
def test_counts_are_positive(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"^{name}: expected an integer of at least 1, got"):
        WorkloadOptions(**{name: value})


@pytest.mark.parametrize("name", ["batch", "seq", "image"])
def test_counts_are_of_this_world(name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: expected at most 1,000,000,000, got 10{{20}}$"):
        WorkloadOptions(**{name: 10**20})


@pytest.mark.parametrize("value", [True, 2.0, "4"])
def test_a_count_is_an_integer(value: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^batch: .* got " + str(value).replace(".", r"\.") + "|'"
    ):
        WorkloadOptions(batch=value)


@pytest.mark.parametrize(
    ("name", "wrong", "choices"),
    [
        ("dtype", "float32", DTYPES),
        ("amp", "fp32", AMP_DTYPES),
        ("optimizer", "lion", OPTIMIZERS),
        ("optimizer_kind", "slow", ("default", "foreach", "fused", "for-loop")),
        ("logits", "none", ("last", "all")),
        ("loss", "fused", ("full", "chunked")),
    ],
)
def test_an_unknown_choice_lists_the_known(name: str, wrong: str, choices: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"^{name}: expected one of") as caught:
        WorkloadOptions(**{name: wrong})
    assert all(choice in str(caught.value) for choice in choices)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_quantised_weights_are_not_trained_alone(kind: str) -> None:
    with pytest.raises(UsageError, match="Add --lora"):
        WorkloadOptions(quantize=kind).check_trainable()
    WorkloadOptions(quantize=kind, inference=True).check_trainable()
    WorkloadOptions(quantize=kind, lora=Lora(r=8)).check_trainable()


def test_a_cache_holds_at_least_the_prompt() -> None:
    with pytest.raises(UsageError, match="at least the 64 tokens of the prompt"):
        WorkloadOptions(kv_tokens=63, seq=64, inference=True)
    assert WorkloadOptions(kv_tokens=64, seq=64, inference=True).kv_tokens == 64


@pytest.mark.parametrize(
    "other",
    [{"optimizer": "adamw"}, {"lora": Lora(r=4)}, {"grad_accum": 2}, {"checkpointing": True}],
)
def test_training_holds_no_cache(other: dict[str, Any]) -> None:
    (name,) = other
    with pytest.raises(UsageError, match=f"^kv_tokens: .* inference only, where {name} would do"):
        WorkloadOptions(kv_tokens=9, **other)
    assert WorkloadOptions(**other).of_training() == (name,)


@pytest.mark.parametrize(
    "other",
    [{"optimizer": "adamw"}, {"grad_accum": 2}, {"checkpointing": True}, {"loss": "chunked"}],
)
def test_inference_refuses_what_only_training_has(other: dict[str, Any]) -> None:
    (name,) = other
    with pytest.raises(UsageError, match=f"^inference: .* no backward pass, so {name} would do"):
        WorkloadOptions(inference=True, **other)


def test_inference_holds_adapters_and_needs_no_optimizer() -> None:
    assert WorkloadOptions(inference=True, lora=Lora(r=4), kv_tokens=9).lora == Lora(r=4)
    assert WorkloadOptions(inference=True, optimizer="none").optimizer == "none"


@pytest.mark.parametrize("other", [{"grad_accum": 2}, {"amp": "fp16"}])
def test_gradients_dropped_in_backward_cannot_be_gathered(other: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="^optimizer_in_backward"):
        WorkloadOptions(optimizer_in_backward=True, **other)


@given(
    rank=st.integers(1, 512),
    names=st.lists(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), max_size=4),
)
def test_lora_is_read_from_text(rank: int, names: list[str]) -> None:
    lora = Lora.parse(", ".join([str(rank), *names]))
    assert lora == Lora(r=rank, targets=tuple(names))


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_is_a_share(dropout: float) -> None:
    with pytest.raises(UsageError, match="^lora dropout: expected 0 or more and below 1"):
        Lora(r=8, dropout=dropout)


@pytest.mark.parametrize("text", ["", "q_proj", "4.5,q_proj", "-3", "0"])
def test_lora_needs_a_rank(text: str) -> None:
    with pytest.raises(UsageError, match="lora"):
        Lora.parse(text)
