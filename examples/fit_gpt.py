"""Train a small GPT in a budget that it does not fit, with the same result bit for bit.

    python examples/fit_gpt.py --budget 110MiB

It runs on the CPU, so the budget is of ordinary memory.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ebbtide
from ebbtide.units import format_bytes

WORDS, WIDTH, LENGTH = 2048, 192, 128


class Gpt(nn.Module):
    """A decoder of Transformer layers."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, ``(N, T, WORDS)``, for tokens ``(N, T)``."""
        length = tokens.shape[1]
        hidden = self.words(tokens) + self.places.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            hidden = layer(hidden, mask, is_causal=True)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


def loss_fn(model: nn.Module, tokens: Tensor) -> Tensor:
    """How surprising each token is after those before it."""
    scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Plan, verify, train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", default="110MiB")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, WORDS, (4, LENGTH))

    plan = ebbtide.fit(model, optimizer, tokens, loss_fn, budget=args.budget, exact=True)
    print(f"without a plan  {format_bytes(plan.plain_peak_bytes)}")
    print(f"budget          {format_bytes(plan.budget_bytes)}")
    print(f"with the plan   {format_bytes(plan.predicted_peak_bytes)}")
    for technique in plan.techniques:
        print(f"{technique.name}: {technique.reason}")

    print(plan.verify([tokens] * 2))
    with plan.apply(model, optimizer) as step:
        for number in range(1, args.steps + 1):
            print(f"step {number}: loss {step(tokens).item():.4f}")


if __name__ == "__main__":
    main()
