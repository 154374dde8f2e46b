"""The allocator model against this machine's own allocator: every address must be the same."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

Run = Callable[..., subprocess.CompletedProcess[str]]


def record(path: Path, work: Callable[[], None]) -> None:
    """Write a snapshot of `work`, from an empty allocator."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=200_000)
    try:
        work()
        torch.cuda.memory._dump_snapshot(str(path))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def random_sizes(seed: int) -> None:
    """Allocations of all sizes that live for a random while, with `empty_cache` now and then."""
    import torch

    chance, alive = random.Random(seed), []
    for _ in range(3000):
        size = round(2 ** chance.uniform(0, 26))
        alive.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        while len(alive) > 1 and (len(alive) > 200 or chance.random() < 0.45):
            alive.pop(chance.randrange(len(alive)))
        if chance.random() < 0.002:
            torch.cuda.empty_cache()


def training() -> None:
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)])
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (64, 512, 96):
        model(torch.randn(batch, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "work",
    [lambda: random_sizes(0), lambda: random_sizes(1), training],
    ids=["sizes 0", "sizes 1", "training"],
)
def test_every_address_and_segment_is_the_devices_own(
    work: Callable[[], None], tmp_path: Path, run_cli: Run
) -> None:
    snapshot = tmp_path / "snapshot.pickle"
    record(snapshot, work)
    done = run_cli("replay", str(snapshot), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["allocations"] > 50
    assert found["same_address"] == found["allocations"]
    assert found["same_segment_allocations"] == found["segment_allocations"]
