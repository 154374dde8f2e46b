"""Compare predictions with the CUDA device of this machine, and write a dated table.

    python bench/gpu_accuracy.py [--seconds 400] [--only NAME ...] [--out docs/measurements]

Every workload is one unmodified script, run on the device (`gpu_measured.py`) and in
``ebbtide predict`` with the device's name. Nothing else may run on the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
SCRIPTS = BENCH / "gpu_workloads"
GiB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A script with its arguments, the packages it needs and about the GiB it takes."""

    name: str
    script: Path
    args: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    needs_gib: float = 12


def _language(name: str, *args: str, needs_gib: float = 12, lora: bool = False) -> Workload:
    packages = ("transformers", "peft") if lora else ("transformers",)
    script = SCRIPTS / "language.py"
    return Workload(name=name, script=script, args=args, packages=packages, needs_gib=needs_gib)


def _vision(name: str, *args: str, needs_gib: float = 12) -> Workload:
    script = SCRIPTS / "vision.py"
    return Workload(name=name, script=script, args=args, packages=("timm",), needs_gib=needs_gib)


WORKLOADS = (
    Workload(
        name="GPT-2, bf16 autocast, AdamW, clipping",
        script=ROOT / "examples" / "train_gpt2.py",
        args=("--batch", "4", "--steps", "4"),
        packages=("transformers",),
    ),
    _language("GPT-2, fp32, AdamW", "--model", "gpt2", needs_gib=14),
    _language("BERT-base, fp16 and GradScaler", "--model", "bert-base", "--precision", "fp16"),
    _language("T5-small, fp32, Adafactor", "--model", "t5-small", "--optimizer", "adafactor"),
    _language(
        "Llama 1.1 B, bf16, checkpointing",
        *("--model", "llama-1b", "--precision", "bf16-true", "--checkpointing"),
    ),
    _language(
        "Llama 1.1 B, bf16, LoRA 16",
        *("--model", "llama-1b", "--precision", "bf16-true", "--lora", "16", "--batch", "4"),
        lora=True,
        needs_gib=20,
    ),
    _language(
        "Mixtral-like, 8 experts, bf16 autocast, SGD",
        *("--model", "mixtral-small", "--precision", "bf16", "--optimizer", "sgd", "--batch", "4"),
        needs_gib=20,
    ),
    _vision("ResNet-50, fp32, SGD", "--model", "resnet50"),
    _vision("ResNet-50, fp16, channels last", "--precision", "fp16", "--channels-last"),
    _vision("ViT-B/16, bf16 autocast", "--model", "vit_base_patch16_224", "--precision", "bf16"),
    _vision("ConvNeXt-T, inference", "--model", "convnext_tiny", "--inference", "--batch", "128"),
    Workload(name="Diffusion U-Net, bf16 autocast", script=SCRIPTS / "diffusion.py"),
    Workload(name="LSTM, 3 layers, clipping", script=SCRIPTS / "recurrent.py"),
    Workload(
        name="Llama 1.1 B, generate 32 tokens",
        script=SCRIPTS / "generate.py",
        packages=("transformers",),
        needs_gib=5,
    ),
)


class WorkloadFailed(Exception):
    """A run of a workload, real or predicted, ended with an error; the text is its last line."""


def measure(workload: Workload) -> dict[str, Any]:
    """What the device measured: see `gpu_measured.measured`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        runner = [sys.executable, str(BENCH / "gpu_measured.py"), str(out)]
        _run([*runner, str(workload.script), *workload.args])
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def predict(workload: Workload, gpu: str) -> dict[str, Any]:
    """What ``ebbtide predict --json`` says of `workload` on `gpu`."""
    command = [sys.executable, "-m", "ebbtide", "predict", str(workload.script), "--gpu", gpu]
    done = _run([*command, "--json", "--no-curve", "--", *workload.args], accept=(0, 1))
    found: dict[str, Any] = json.loads(done)
    return found


def _run(command: list[str], accept: tuple[int, ...] = (0,)) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    except subprocess.TimeoutExpired as error:
        raise WorkloadFailed("no end after 240 s") from error
    if done.returncode not in accept:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise WorkloadFailed(f"exit code {done.returncode}: {last[:200]}")
    return done.stdout


def reason_to_skip(workload: Workload, total_bytes: int) -> str | None:
    """Why `workload` cannot run here, or None."""
    missing = [name for name in workload.packages if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    if workload.needs_gib * GiB > total_bytes:
        return f"takes about {workload.needs_gib:g} GiB"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A workload with both answers, or with the reason why there are none."""

    name: str
    measured: dict[str, Any] | None = None
    predicted: dict[str, Any] | None = None
    reason: str = ""

    def error(self, field: str) -> float | None:
        """Predicted over measured less one, of ``"allocated"`` or ``"reserved"``."""
        if self.measured is None or self.predicted is None:
            return None
        predicted: int = self.predicted[f"peak_{field}_bytes"]
        measured: int = self.measured[f"{field}_bytes"]
        return predicted / measured - 1


def compare(workload: Workload, gpu: str, total_bytes: int, pool: ThreadPoolExecutor) -> Row:
    """Run `workload` on the device and in the predictor, at the same time."""
    reason = reason_to_skip(workload, total_bytes)
    if reason:
        return Row(name=workload.name, reason=reason)
    predicted = pool.submit(predict, workload, gpu)
    try:
        return Row(name=workload.name, measured=measure(workload), predicted=predicted.result())
    except WorkloadFailed as error:
        return Row(name=workload.name, reason=str(error))


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table, with the median errors below it."""
    lines = [
        "| workload | allocated, GiB | predicted | error | reserved, GiB | predicted | error "
        "| process, GiB | predicted range | step, ms | predicted |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_line(row) for row in rows),
        "",
    ]
    for field in ("allocated", "reserved"):
        errors = [abs(e) for row in rows if (e := row.error(field)) is not None]
        if errors:
            lines.append(
                f"Median error of {field}: {statistics.median(errors):.2%}, "
                f"largest {max(errors):.2%}, of {len(errors)} workloads.  "
            )
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    real, said = row.measured, row.predicted
    if real is None or said is None:
        return f"| {row.name} | {row.reason} " + "| " * 9 + "|"
    cells = [row.name]
    for field in ("allocated", "reserved"):
        cells += [_gib(real[f"{field}_bytes"]), _gib(said[f"peak_{field}_bytes"])]
        cells.append(f"{row.error(field):+.2%}")
    span = said["process_bytes"]
    cells += [_gib(real["process_bytes"]), f"{_gib(span['low'])} to {_gib(span['high'])}"]
    cells += [_ms(real["step_s"]), _ms(said.get("step_s"))]
    return f"| {' | '.join(cells)} |"


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GiB:.3f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def device() -> tuple[str, int, str]:
    """Name, total bytes, and the versions of driver and torch, of the first CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("This needs a CUDA device; there is none here.")
    driver = ["nvidia-smi", "-i", "0", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        version = subprocess.run(driver, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        version = "unknown"
    facts = torch.cuda.get_device_properties(0)
    about = f"driver {version}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    return facts.name, facts.total_memory, about


def main(argv: list[str] | None = None) -> int:
    """Compare until the time is over, print the table and write it; 1 when nothing compared."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=400, help="start nothing after this")
    parser.add_argument("--only", nargs="+", help="workloads whose name contains one of these")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements")
    args = parser.parse_args(argv)
    name, total_bytes, about = device()
    end, rows = time.monotonic() + args.seconds, []
    with ThreadPoolExecutor(max_workers=1) as pool:
        for workload in WORKLOADS:
            if args.only and not any(word in workload.name for word in args.only):
                continue
            if time.monotonic() > end:
                rows.append(Row(name=workload.name, reason="no time left"))
                continue
            rows.append(compare(workload, name, total_bytes, pool))
            print(_line(rows[-1]), flush=True)
    text = f"# {name}, {date.today()}\n\n{about}.\n\n{table(rows)}"
    args.out.mkdir(parents=True, exist_ok=True)
    page = args.out / f"{date.today()}-{name.lower().replace(' ', '-')}.md"
    page.write_text(text, encoding="utf-8")
    print(f"\n{text}\nWritten to {page}")
    return 0 if any(row.measured for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
