"""Chunked cross-entropy gives the model's own loss without all of its logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ebbtide.errors import UsageError
from ebbtide.workloads import chunked
from ebbtide.workloads.architectures import build, find
from ebbtide.workloads.options import Lora, WorkloadOptions


@pytest.mark.parametrize("lora", [None, Lora(r=2)])
def test_the_loss_and_gradients_are_the_models_own(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch, lora: Lora | None
) -> None:
    """Case P25: plain against chunked."""
    monkeypatch.setattr(chunked, "CHUNK_TOKENS", 5)
    options = WorkloadOptions(batch=2, seq=9, loss="chunked", optimizer="none", lora=lora)
    architecture, _ = find(tiny(), options)
    model = build(architecture, options, "cpu").model
    inputs = architecture.make_inputs(options, 2, torch.device("cpu"))
    trained = [p for p in model.parameters() if p.requires_grad]
    losses = [chunked.chunked_loss(model, inputs), model(**inputs).loss]
    ours, theirs = (torch.autograd.grad(loss, trained, allow_unused=True) for loss in losses)
    torch.testing.assert_close(losses[0], losses[1])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_no_tensor_is_as_large_as_all_logits(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "CHUNK_TOKENS", 4)
    options = WorkloadOptions(batch=2, seq=17, loss="chunked", optimizer="none")
    running = build(find(tiny(), options)[0], options, "cpu")
    head = running.model.get_output_embeddings()  # type: ignore[operator]
    rows: list[int] = []
    head.register_forward_hook(lambda m, a, out: rows.append(out.shape[0]))
    running.step(0)
    # Forward and, for the gradient, once more.
    assert max(rows) == 4 and sum(rows) == 2 * 2 * 16


def test_only_causal_language_models_have_one() -> None:
    options = WorkloadOptions(loss="chunked", batch=1)
    with pytest.raises(UsageError, match="^loss: only a causal language model"):
        build(find("bert", options)[0], options, "cpu")
