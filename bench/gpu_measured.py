"""Run a script on the CUDA device and write what torch measured when it ended.

    python bench/gpu_measured.py OUT.json SCRIPT [ARGS...]

The script runs unmodified as ``__main__``. Step times are the gaps between optimizer
steps with the device synchronised; the first gap is left out as warm-up. What the
process takes on the device is read from nvidia-smi as used memory less what was used
before, so nothing else may run on the GPU.
"""

from __future__ import annotations

import json
import runpy
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch


def used_mib() -> int | None:
    """MiB in use on the first GPU as nvidia-smi shows it, or None without nvidia-smi."""
    query = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def measured(script: str, args: list[str]) -> dict[str, Any]:
    """Run `script` and return the device's own figures."""
    before = used_mib()
    ticks: list[float] = []

    def tick(*_: object) -> None:
        torch.cuda.synchronize()
        ticks.append(time.perf_counter())

    torch.optim.optimizer.register_optimizer_step_post_hook(tick)
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    torch.cuda.synchronize()
    after = used_mib()
    gaps = [b - a for a, b in pairwise(ticks)][1:]
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "process_bytes": None if before is None or after is None else (after - before) << 20,
        "step_s": statistics.median(gaps) if gaps else None,
    }


if __name__ == "__main__":
    out, name, *rest = sys.argv[1:]
    figures = measured(name, rest)
    Path(out).write_text(json.dumps(figures), encoding="utf-8")
