"""Train an LSTM language model for a few steps on random tokens."""

import torch
from torch import nn

VOCABULARY, WIDTH, BATCH, LENGTH, STEPS = 10_000, 1024, 64, 128, 4


class Model(nn.Module):
    """Embedding, three LSTM layers and a classifier over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=3, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocabulary) of the tokens (batch, length)."""
        hidden, _ = self.lstm(self.embed(tokens))
        return self.head(hidden)


def main() -> None:
    torch.manual_seed(0)
    model = Model().to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device="cuda")
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
