"""The catalogue and the virtual GPU beside the real one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.gpu

Run = Callable[..., subprocess.CompletedProcess[str]]

UNCHANGED = """
import torch, ebbtide
from torch import nn

def step():
    torch.manual_seed(0)
    model = nn.Linear(64, 64).cuda()
    loss = model(torch.ones(8, 64, device="cuda")).square().sum()
    loss.backward()
    return loss.item(), model.weight.grad.sum().item()

before, held = step(), torch.cuda.memory_allocated()
name = torch.cuda.get_device_name()
said = ebbtide.predict(nn.Linear(64, 64), torch.ones(8, 64), gpu="t4")
assert said.peak_allocated_bytes > 0
assert torch.cuda.memory_allocated() == held, "the prediction took real memory"
assert torch.cuda.get_device_name() == name, "the device still says it is another"
assert step() == before
"""


def test_the_catalogue_knows_this_device(run_cli: Run) -> None:
    import torch

    facts = torch.cuda.get_device_properties(0)
    done = run_cli("gpus", facts.name, "--json")
    assert done.returncode == 0, done.stderr
    (gpu,) = json.loads(done.stdout)
    assert gpu["compute_capability"] == [facts.major, facts.minor]
    assert gpu["sm_count"] == facts.multi_processor_count
    derived = gpu["sources"]["usable_bytes"]["title"].startswith("Derived")
    assert gpu["usable_bytes"] == pytest.approx(facts.total_memory, rel=0.05 if derived else 0.01)


def test_a_prediction_leaves_the_real_device_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", UNCHANGED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
