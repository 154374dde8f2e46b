"""`ebbtide fit` and `ebbtide run`: a plan for a script, carried out by the script as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.fitting.models import MiB
from torch.nn import functional as F

import ebbtide
from ebbtide.cli.app import main

Show = Callable[..., tuple[int, str, str]]

SCRIPT = """
import sys
import torch
from torch import nn

width, batch = 64, int(sys.argv[1])
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
block = lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
model = nn.Sequential(*(block() for _ in range(8))).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    x = torch.randn(batch, width, device=device)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model(x)
print(loss.item(), sum(p.double().sum().item() for p in model.parameters()))
"""
MODULES = {f"{i}.{j}" for i in range(8) for j in range(3)}
STABLE = {
    "budget_bytes",
    "fits",
    "predicted_peak_bytes",
    "predicted_step_s",
    "host_bytes",
    "techniques",
    "front",
    "optimality_gap",
}


@pytest.fixture
def show(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Show:
    """Run the command in an empty folder; its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*args: str) -> tuple[int, str, str]:
        code = main(list(args))
        output = capfd.readouterr()
        return code, output.out, output.err

    return run


def test_a_script_that_fits_needs_nothing(show: Show) -> None:
    code, out, _ = show("fit", "train.py", "--gpu", "l4", "--", "4096")
    assert code == 0
    assert out.startswith("✔ Fits as it is: ")
    assert "Nothing needs to be done." in out
    assert "What other budgets would cost:" in out


def test_a_plan_for_a_script_and_its_json(show: Show, tmp_path: Path) -> None:
    plain = json.loads(show("fit", "train.py", "--gpu", "l4", "--json", "--", "65536")[1])
    budget = plain["predicted_peak_bytes"] * 3 // 4
    args = ("fit", "train.py", "--gpu", "l4", "--budget", str(budget), "--plan", "p.json")
    code, out, err = show(*args, "--json", "--", "65536")
    assert code == 0, err
    plan = json.loads(out)
    assert set(plan) >= STABLE
    assert plan["fits"]
    assert plan["predicted_peak_bytes"] <= budget == plan["budget_bytes"]
    assert plan["predicted_step_s"] > plain["predicted_step_s"]
    (recompute,) = (each for each in plan["techniques"] if each["name"] == "recompute")
    assert set(recompute) == {"name", "settings", "bytes_saved_at_peak", "seconds", "reason"}
    assert recompute["bytes_saved_at_peak"] > 0
    assert {each["module"] for each in recompute["settings"]["keep"]} <= {*MODULES, ""}
    assert json.loads((tmp_path / "p.json").read_text()) == plan

    code, out, err = show(*args, "--", "65536")
    assert (code, out) == (2, "")
    assert "p.json exists already. Use --force to overwrite it." in err


def test_nothing_fits(show: Show) -> None:
    args = ("fit", "train.py", "--gpu", "l4", "--budget", "2MiB")
    code, out, err = show(*args, "--", "64")
    assert (code, out) == (1, "")
    assert "Nothing fits. Parameters, buffers, optimizer state" in err.replace("\n", " ")
    code, out, _ = show(*args, "--json", "--", "64")
    assert code == 1
    answer = json.loads(out)
    assert set(answer) >= STABLE
    assert answer["fits"] is False
    assert "take" in answer["reason"]


def test_an_architecture(show: Show) -> None:
    code, out, err = show("fit", "resnet18", "--gpu", "t4", "--image", "64", "--json")
    assert code == 0, err
    assert json.loads(out)["where"] == "t4"


FUNCTION = """
import torch
from torch import nn

def build(batch=256):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(batch, 64), loss

def loss(output, batch):
    return output.square().mean()

def infer():
    return nn.Linear(4, 4), None, torch.randn(2, 4)
"""


def test_a_function(show: Show, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    code, out, err = show("fit", "mine:build", "--gpu", "t4", "--json")
    assert code == 0, err
    assert json.loads(out)["techniques"] == []
    code, _, err = show("fit", "mine:infer", "--gpu", "t4")
    assert code == 2
    assert "there is no step to plan" in err


BAD = {
    "no such script": (("fit", "nix.py"), "nix.py"),
    "a trace": (("fit", "run.trace"), "is a saved trace"),
    "a budget that is no size": (("fit", "train.py", "--budget", "much"), "no size"),
    "a budget of nothing": (("fit", "train.py", "--budget", "0"), "more than 0 bytes"),
    "an unknown GPU": (("fit", "train.py", "--gpu", "l5"), "l5"),
    "a plan in no folder": (("fit", "train.py", "--plan", "a/b.json"), "no folder a"),
    "inference": (("fit", "gpt2", "--kv-tokens", "9"), "No such option"),
    "a script of one step": (("fit", "once.py"), "fewer than two optimizer steps"),
    "no plan to run": (("run", "--plan", "nix.json", "--", "true"), "cannot be read"),
    "a plan that is none": (("run", "--plan", "train.py", "--", "true"), "is no JSON"),
    "a list for a plan": (("run", "--plan", "list.json", "--", "true"), "ebbtide_plan"),
    "no program": (("run", "--plan", "empty.json", "--", "nix-nix"), "cannot be run"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(show: Show, name: str, tmp_path: Path) -> None:
    args, text = BAD[name]
    (tmp_path / "once.py").write_text(
        SCRIPT.replace("range(3)", "range(1)").replace("1]", "0][:0] or 8")
    )
    (tmp_path / "list.json").write_text("[]")
    empty = {"ebbtide_plan": 1, "budget_bytes": 1, "fits": True, "techniques": [], "front": []}
    empty |= {"predicted_peak_bytes": 1, "plain_peak_bytes": 1, "predicted_step_s": 0.0}
    (tmp_path / "empty.json").write_text(json.dumps({**empty, "host_bytes": 0}))
    code, out, err = show(*args)
    assert (code, out) == (2, "")
    assert text in err


def run_script(folder: Path, *before: str) -> str:
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", "train.py", "512"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_runs_under_a_plan_and_comes_to_the_same(show: Show, tmp_path: Path) -> None:
    """On the CPU, so the plan is made there; the script's operations are those of the model."""
    block = [
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
        for _ in range(8)
    ]
    model = torch.nn.Sequential(*block)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(512, 64)
    loose = ebbtide.fit(model, optimizer, (x, x), F.mse_loss, budget="1GiB")
    plan = ebbtide.fit(
        model, optimizer, (x, x), F.mse_loss, budget=loose.predicted_peak_bytes - 2 * MiB
    )
    assert plan.techniques
    plan.save(tmp_path / "p.json")
    ebbtide_run = (sys.executable, "-m", "ebbtide", "run", "--plan", "p.json", "--")
    assert run_script(tmp_path, *ebbtide_run) == run_script(tmp_path)


def test_the_exit_code_is_the_programs(
    run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    empty = {"ebbtide_plan": 1, "budget_bytes": 1, "fits": True, "techniques": [], "front": []}
    empty |= {"predicted_peak_bytes": 1, "plain_peak_bytes": 1, "predicted_step_s": 0.0}
    (tmp_path / "p.json").write_text(json.dumps({**empty, "host_bytes": 0}))
    done = run_cli("run", "--plan", "p.json", "--", "sh", "-c", "echo out; exit 7", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "out\n")
