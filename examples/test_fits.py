"""A project's own test that its model still trains on the GPU that the team has.

    pytest examples/test_fits.py

No GPU is needed. When a change grows memory beyond the GPU, the test fails and says
what takes most; when it grows memory beyond the budget below, the pull request shows it.
"""

import torch
from torch import nn

import ebbtide

GiB = 1 << 30


def make_model() -> nn.Module:
    """A Transformer encoder of 119 million parameters."""
    layer = nn.TransformerEncoderLayer(768, nhead=12, dim_feedforward=3072, batch_first=True)
    return nn.Sequential(
        nn.Embedding(50_000, 768), nn.TransformerEncoder(layer, 6), nn.Linear(768, 50_000)
    )


def loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the logits (batch, length, vocabulary) for the tokens themselves."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def test_training_fits_a_t4() -> None:
    """Batch 16 of 128 tokens fits, and stays below 6 GiB."""
    tokens = torch.zeros(16, 128, dtype=torch.long)
    prediction = ebbtide.assert_fits(
        make_model, tokens, gpu="t4", optimizer=torch.optim.AdamW, loss=loss
    )
    assert prediction.peak_allocated_bytes < 6 * GiB
