"""Unmodified scripts, each in a fork of its own on the virtual GPU.

None of them knows Ebbtide; each would run on a real GPU. They assert what they
can about their own results and print "finished" at the end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MARK = "EBBTIDE "
MiB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script and what is known of its run.

    `floor` is memory that it must have taken at least, in bytes: parameters,
    gradients and optimizer state by hand. `guesses` are kinds that must be
    listed. `says` is text that it must print.
    """

    arguments: tuple[str, ...] = ()
    floor: int = 0
    guesses: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    enforce: bool = False
    gpu: str = "l4"
    environment: dict[str, str] = field(default_factory=dict)


# Parameters, gradients and two moments in fp32 for each of n parameters.
def adam(n: int) -> int:
    return 16 * n


CASES = {
    "gpt_scratch": Case(floor=adam(3_400_000), guesses=("compile", "save"), says=("max memory",)),
    "image_classifier": Case(floor=12 * 11_000_000, needs=("torchvision",), says=("NVIDIA L4",)),
    "vit_distill": Case(floor=4 * 21_000_000 + adam(1_800_000), needs=("timm",)),
    "hf_trainer": Case(guesses=("save",), needs=("transformers",), says=("reloaded on cuda:0",)),
    "accelerate_resume": Case(guesses=("save",), needs=("accelerate",), says=("checkpoint_1",)),
    "lightning_mixed": Case(
        guesses=("save",), needs=("lightning", "torchmetrics"), says=("GPU available: True",)
    ),
    "gan": Case(says=("penalty",)),
    "unet_segmentation": Case(guesses=("save",), says=("IoU",)),
    "diffusion": Case(says=("step 2 loss",)),
    "ddp_single": Case(guesses=("distributed", "save"), says=("epoch 1 loss",)),
    "moe": Case(says=("tokens per expert",)),
    "lora_peft": Case(
        guesses=("save",), needs=("peft", "transformers"), says=("trainable params: 19,968",)
    ),
    "rnn_lm": Case(says=("LSTM: loss", "GRU: loss", "RNN: loss")),
    "ppo": Case(says=("explained",)),
    "dqn": Case(says=("updates, last loss",)),
    "streaming_inference": Case(guesses=("cuda-graph", "time"), says=("mean latency",)),
    "generate_kv": Case(needs=("transformers",), says=("first answer",)),
    "from_folder": Case(guesses=("save",), needs=("transformers", "safetensors")),
    "memory_report": Case(says=("GPU reserved memory", "bf16 True", "sm_80")),
    "contrastive": Case(needs=("torchvision",), says=("kNN accuracy",)),
    "batch_finder": Case(enforce=True, says=("CUDA out of memory", "largest")),
    "summary_profiler": Case(needs=("torchinfo",), says=("Total params",)),
    "seq2seq": Case(says=("decoded [1,",)),
    "spawn_amp": Case(guesses=("spawn",), says=("apex False", "scale 2048.0")),
}


class Runner:
    """The process that has imported torch and forks for each script."""

    def __init__(self) -> None:
        source = str(HERE.parents[1] / "src")
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "run_virtual.py")],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, script: str, case: Case, folder: Path) -> tuple[str, dict[str, Any]]:
        """What the script printed, and what it took."""
        out = folder.with_name(f"{folder.name}.out")
        job = {
            "gpu": case.gpu,
            "enforce": case.enforce,
            "script": str(HERE / f"{script}.py"),
            "arguments": case.arguments,
            "folder": str(folder),
            "environment": {"TMPDIR": str(folder), **case.environment},
            "out": str(out),
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        code = self._process.stdout.readline()
        said = out.read_text()
        assert code.strip() == "0", f"ended with {code}: {said[-9000:]}"
        lines = [line for line in said.splitlines() if line.startswith(MARK)]
        return said, json.loads(lines[-1].removeprefix(MARK))

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


def test_every_script_is_a_case() -> None:
    ours = {"run_virtual", "test_scripts"}
    assert {path.stem for path in HERE.glob("*.py")} - ours == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_no_script_knows_ebbtide(name: str) -> None:
    text = (HERE / f"{name}.py").read_text()
    assert "ebbtide" not in text.lower()
    assert re.search(r"cuda|gpu|Accelerator|Trainer", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_script_runs_unmodified(name: str, tmp_path: Path, run: Runner) -> None:
    case = CASES[name]
    for package in case.needs:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    said, result = run(name, case, tmp_path)
    assert "finished" in said.splitlines()
    for text in case.says:
        assert text in said
    assert result["peak_allocated_bytes"] >= max(case.floor, MiB)
    assert result["operations"] > 50
    assert set(case.guesses) <= set(result["guesses"])


@pytest.mark.slow
def test_nothing_that_holds_shapes_only_is_left_behind(tmp_path: Path, run: Runner) -> None:
    run("unet_segmentation", CASES["unet_segmentation"], tmp_path)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


@pytest.mark.slow
def test_the_same_script_takes_the_same_memory_twice(tmp_path: Path, run: Runner) -> None:
    case = CASES["ddp_single"]
    results = [run("ddp_single", case, tmp_path)[1] for _ in range(2)]
    assert results[0]["peak_allocated_bytes"] == results[1]["peak_allocated_bytes"]
    assert results[0]["operations"] == results[1]["operations"]


@pytest.mark.slow
def test_the_largest_batch_is_larger_on_a_larger_gpu(tmp_path: Path, run: Runner) -> None:
    largest = []
    for gpu in ("t4", "l4"):
        case = Case(enforce=True, gpu=gpu)
        said, _ = run("batch_finder", case, tmp_path)
        found = re.search(r"^largest (\d+)$", said, re.M)
        assert found is not None
        largest.append(int(found[1]))
    # 224 MB an image and two copies of a small model: the ratio of the memories.
    assert 1.3 < largest[1] / largest[0] < 1.7
