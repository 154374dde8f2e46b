"""Small models in training that several tests plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

MiB = 1 << 20
Training = tuple[nn.Module, Optimizer, Any]


def block(width: int) -> nn.Module:
    """Two layers with a wide one between."""
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
    )


def chain(blocks: int = 8, width: int = 64, batch: int = 512) -> Training:
    """Blocks of which most memory is activations: 9 MiB of 11 in all, roughly."""
    torch.manual_seed(0)
    model = nn.Sequential(*(block(width) for _ in range(blocks)))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, (torch.randn(batch, width), torch.randn(batch, width))


class Residual(nn.Module):
    """Convolutions with batch norms around which the input goes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
            )
            for _ in range(4)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of ``(N, 3, H, W)``."""
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        scores: Tensor = self.head(hidden.mean((2, 3)))
        return scores


def images(batch: int = 16) -> Training:
    """A residual network on 32 by 32 pixels."""
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, (torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,)))


def state_of(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Copies of all that training changes, and of the random state."""
    found = [each.detach().clone() for each in (*model.parameters(), *model.buffers())]
    found += [each.grad.clone() for each in model.parameters() if each.grad is not None]
    for state in optimizer.state.values():
        found += [each.clone() for each in state.values() if isinstance(each, Tensor)]
    return [*found, torch.get_rng_state()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether two states are equal bit for bit."""
    return len(one) == len(other) and all(map(torch.equal, one, other))
