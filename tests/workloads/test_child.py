"""The process that runs workloads: what it imports early, says, and returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workloads.running import HEAD, MODEL, on_path

from ebbtide.trace.file import load_trace
from ebbtide.workloads import child
from ebbtide.workloads.child import heavy_imports
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.request import Request


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


def test_heavy_imports_are_found_with_their_names(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "import os, torch, torch.nn.functional as F\n"
        "from transformers import GPT2Config, Trainer\n"
        "from transformers import AutoModel\n"
        "from . import torch_things\n"
        "from torchvision.models import resnet18\n"
        "import mine\n"
        "def late():\n    import timm\n",
    )
    assert heavy_imports(path) == {
        "torch": [],
        "torch.nn.functional": [],
        "transformers": ["GPT2Config", "Trainer", "AutoModel"],
        "torchvision.models": ["resnet18"],
    }


@pytest.mark.parametrize("text", ["def f(:\n", "\0", "import json\n", ""])
def test_nothing_heavy_or_no_python(tmp_path: Path, text: str) -> None:
    assert heavy_imports(written(tmp_path, text)) == {}


def test_a_missing_file(tmp_path: Path) -> None:
    assert heavy_imports(tmp_path / "none.py") == {}


def test_odd_strings_in_a_script_warn_nobody_here(tmp_path: Path) -> None:
    assert heavy_imports(written(tmp_path, 'import torch\nx = "\\d"\n')) == {"torch": []}


def test_imports_that_fail_are_left_to_the_script(tmp_path: Path) -> None:
    path = written(tmp_path, "import torch.no_such_module\nfrom torch import no_such_name\n")
    child.import_heavy(path)
    assert "torch" in sys.modules


# -- the whole process


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run the process on a request: messages, stderr and exit code."""

    def run(request: Request, **environment: str) -> tuple[list[dict[str, Any]], str, int]:
        folder = tmp_path_factory.mktemp("asked")
        path = folder / "request.json"
        from dataclasses import replace

        path.write_text(replace(request, folder=str(folder)).to_text())
        done = subprocess.run(
            [sys.executable, "-m", "ebbtide.workloads.child", str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
        messages = [json.loads(line) for line in done.stdout.splitlines()]
        return messages, done.stderr, done.returncode

    return run


@pytest.fixture(scope="module")
def script(ask: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A script that prints and is run three times."""
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(
        HEAD
        + MODEL
        + "import os, sys\nprint('printed', sys.argv[1:])\nos.system('echo from a child')\n"
        "for i in range(10): step(int(sys.argv[2]))\n"
    )
    args = ("--batch", "{batch}")
    return ask(Request(kind="script", target=str(path), gpus=("t4",), batch=8, args=args))


def test_its_stdout_is_messages_alone(script: Any) -> None:
    messages, _, code = script
    assert code == 0
    assert [message["event"] for message in messages] == [
        "phase",
        *["phase", "trace"] * 3,
        "done",
    ]


def test_the_scripts_output_is_shown_once_on_stderr(script: Any) -> None:
    _, shown, _ = script
    assert shown.count("printed ['--batch', '8']") == 1
    assert shown.count("from a child") == 1


def test_traces_are_at_the_batches(script: Any) -> None:
    traces = [load_trace(m["path"]) for m in script[0] if m["event"] == "trace"]
    assert [trace.meta["batch"] for trace in traces] == [8, 16, 32]
    assert {trace.gpu for trace in traces} == {"t4"}
    sizes = [int(trace.allocs.likely_bytes.sum()) for trace in traces]
    assert sizes[1] - sizes[0] > 0
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


def test_functions_are_imported_on_the_virtual_gpu(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(
        "import torch\n"
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "print('imported')\n"
        "def build(batch=4):\n"
        "    model = torch.nn.Linear(8, 8).to(device)\n"
        "    return model, torch.optim.AdamW(model.parameters()), torch.ones(batch, 8)\n"
        "def fails():\n"
        "    raise RuntimeError('no luck')\n"
    )
    environment = {"PYTHONPATH": on_path(tmp_path)["PYTHONPATH"]}
    request = Request(kind="function", target="users:build", gpus=("l4",), curve=False)
    messages, shown, code = ask(request, **environment)
    assert code == 0, shown
    (trace,) = [load_trace(m["path"]) for m in messages if m["event"] == "trace"]
    assert trace.meta["batch"] == 4 and len(trace.allocs.op) > 10
    assert shown.count("imported") == 1
    failing = Request(kind="function", target="users:fails", gpus=("l4",), curve=False)
    messages, shown, code = ask(failing, **environment)
    assert code == 2
    assert messages[-1]["event"] == "error"
    assert messages[-1]["text"].startswith("users:fails failed with RuntimeError: no luck")
    assert "in fails" in shown and "ebbtide" not in shown


def test_architectures_are_quiet(ask: Any, tmp_path: Path) -> None:
    noisy = tmp_path / "sitecustomize.py"
    noisy.write_text("import warnings; warnings.warn('at start', FutureWarning)\n")
    from tests.workloads.conftest import TINY_LLAMA

    config = tmp_path / "config.json"
    config.write_text(json.dumps({**TINY_LLAMA, "attn_implementation": "sdpa"}))
    options = WorkloadOptions(seq=64)
    request = Request(
        kind="architecture", target=str(config), gpus=("l4",), batch=2, options=options
    )
    messages, shown, code = ask(request)
    assert (code, shown) == (0, "")
    traced = [message for message in messages if message["event"] == "trace"]
    assert [message["axis"] for message in traced] == ["answer"] + ["batch"] * 2 + ["seq"] * 2
    metas = [load_trace(message["path"]).meta for message in traced]
    assert [(meta["batch"], meta["seq"]) for meta in metas] == [
        (2, 64),
        (4, 64),
        (8, 64),
        (2, 32),
        (2, 128),
    ]


def test_an_architecture_that_cannot_be_found(ask: Any) -> None:
    messages, shown, code = ask(
        Request(kind="architecture", target="resnet5000", gpus=("l4",), curve=False)
    )
    assert code == 2
    assert (messages[-1]["event"], messages[-1]["kind"]) == ("error", "TargetError")
    assert "resnet5000" in messages[-1]["text"]
    assert "Traceback" not in shown


def test_a_script_that_does_not_fit_is_traced_without_a_limit(ask: Any, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD + "print('begins')\nx = torch.empty(5, 1 << 30, device='cuda')\nprint('ends')\n",
    )
    messages, shown, code = ask(Request(kind="script", target=str(path), gpus=("t4",), curve=False))
    assert code == 0
    assert [message.get("text") for message in messages if message["event"] == "phase"] == [
        "importing",
        "tracing",
        "unlimited",
    ]
    assert shown.count("begins") == 1 and "Traceback" not in shown
    (trace,) = [load_trace(m["path"]) for m in messages if m["event"] == "trace"]
    assert trace.allocs.likely_bytes.sum() == 20 << 30
