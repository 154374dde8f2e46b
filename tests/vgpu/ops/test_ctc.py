"""CTC loss: lengths on the host or the GPU, and what forward keeps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ebbtide.vgpu.virtual_gpu import VirtualGpu


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("flat", [False, True])
def test_what_is_saved_follows_the_longest_target(where: str, flat: bool) -> None:
    steps, batch, classes = 200, 16, 40
    lengths = torch.full((batch,), 30)
    lengths[0] = 50
    with VirtualGpu("l4"):
        x = torch.randn(steps, batch, classes, device="cuda", requires_grad=True)
        shape = (int(lengths.sum()),) if flat else (batch, 60)
        targets = torch.randint(1, classes, shape, device="cuda")
        before = torch.cuda.memory_allocated()
        loss = F.ctc_loss(
            x,
            targets,
            torch.full((batch,), steps, device=where),
            lengths.to(where),
            reduction="none",
        )
        saved = torch.cuda.memory_allocated() - before
        # LossCTC.cu: log_alpha is (batch, steps, 2 * longest + 1); the loss takes 512 B.
        longest = 50 if flat else 60
        expected = batch * steps * (2 * longest + 1) * 4
        assert expected <= saved <= expected + 4096
        assert loss.shape == (batch,)
        loss.sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape


def test_unknown_lengths_are_listed_and_bound_from_above() -> None:
    with VirtualGpu("l4") as gpu:
        x = torch.randn(20, 4, 10, device="cuda").log_softmax(2)
        # More lengths than carry their values.
        lengths = torch.rand(4, device="cuda").mul(10).long()
        lengths._ebbtide_value = None  # type: ignore[attr-defined]
        targets = torch.randint(1, 10, (4, 8), device="cuda")
        assert F.ctc_loss(x, targets, torch.full((4,), 20), lengths).dim() == 0
        assert "ctc" in gpu.guesses
