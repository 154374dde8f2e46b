"""The `schedtune-*` rows: torchvision models on 224 x 224 images, optimizer not stated."""

from __future__ import annotations

import torch
from torch import nn

from .rows import Row
from .xmem import vision_model

STEPS = 3
IMAGE = 224


def train(row: Row, device: torch.device, optimizer: str, *, image: int = IMAGE) -> None:
    """A plain loop with cross-entropy; `optimizer` is the assumption."""
    model = vision_model(row).to(device).train()
    make = getattr(torch.optim, optimizer)
    stepper = make(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    batch = row.batch or 1
    for _ in range(STEPS):
        inputs = torch.randn(batch, 3, image, image).to(device)
        labels = torch.randint(0, 1000, (batch,)).to(device)
        stepper.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        stepper.step()
