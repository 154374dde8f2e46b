"""What a program finds that ``ebbtide run`` starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide import DoesNotFitError
from ebbtide.fitting.environment import PLAN, environment

ALLOCATOR = {
    "name": "allocator settings",
    "settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "bytes_saved_at_peak": 0,
    "seconds": 0.0,
    "reason": "",
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(**changes: Any) -> Path:
        plan = {
            "ebbtide_plan": 1,
            "budget_bytes": 1,
            "fits": True,
            "predicted_peak_bytes": 1,
            "plain_peak_bytes": 1,
            "predicted_step_s": 0.0,
            "host_bytes": 0,
            "techniques": [],
            "front": [],
            **changes,
        }
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        return path

    return write


def test_what_is_inherited_stays(write: Any) -> None:
    found = environment(write(), {"A": "1", "PYTHONPATH": "/mine"})
    assert found["A"] == "1"
    assert found["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
    assert Path(found[PLAN]).is_absolute()
    assert "PYTORCH_ALLOC_CONF" not in found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
            {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
        ),
    ],
)
def test_allocator_settings_join_those_there_are(
    write: Any, given: dict[str, str], expected: dict[str, str]
) -> None:
    found = environment(write(techniques=[ALLOCATOR]), given)
    assert {name: value for name, value in found.items() if "ALLOC" in name} == expected


def test_a_plan_that_does_not_fit_is_not_run(write: Any) -> None:
    with pytest.raises(DoesNotFitError, match="does not fit its budget"):
        environment(write(fits=False), {})


def python(code: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_without_torch_stays_without(write: Any) -> None:
    env = environment(write(), dict(os.environ))
    assert python("import sys; print('torch' in sys.modules)", env) == "False"


def test_the_plan_is_entered_with_the_import_of_torch(write: Any, tmp_path: Path) -> None:
    recompute = {
        "name": "recompute",
        "settings": {"operations": ["aten.t.default"], "keep": []},
        "bytes_saved_at_peak": 0,
        "seconds": 0.0,
        "reason": "",
    }
    env = environment(write(techniques=[recompute]), dict(os.environ))
    modes = "torch.utils._python_dispatch._get_current_dispatch_mode_stack()"
    assert python(f"import torch; print(len({modes}))", env) == "1"


def test_a_sitecustomize_of_the_users_own_runs_too(write: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 5\n")
    env = environment(write(), {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert python("print(mine)", env) == "5"
