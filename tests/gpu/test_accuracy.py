"""Predictions against the GPU of this machine; `bench/gpu_accuracy.py` has more workloads."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# Relative errors. Transformers run kernels that the virtual GPU knows to the byte; the
# workspaces that cuDNN chooses are a range, so recurrent layers and convolutions get more.
EXACT = {"allocated": 0.005, "reserved": 0.01}
WITH_CUDNN = {"allocated": 0.08, "reserved": 0.08}


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "bench" / "gpu_accuracy.py"))


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("GPT-2, bf16 autocast, AdamW, clipping", EXACT),
        ("LSTM, 3 layers, clipping", WITH_CUDNN),
    ],
)
def test_prediction_meets_the_device(
    name: str, bounds: dict[str, float], bench: dict[str, Any]
) -> None:
    gpu, total_bytes, _ = bench["device"]()
    workload = next(each for each in bench["WORKLOADS"] if each.name == name)
    if reason := bench["reason_to_skip"](workload, total_bytes):
        pytest.skip(reason)
    measured = bench["measure"](workload)
    row = bench["Row"](name=name, measured=measured, predicted=bench["predict"](workload, gpu))
    for field, bound in bounds.items():
        assert abs(row.error(field)) <= bound, f"{field}: {row.error(field):+.2%}"


def test_the_process_is_within_the_range(bench: dict[str, Any]) -> None:
    gpu, _, _ = bench["device"]()
    workload = next(each for each in bench["WORKLOADS"] if each.name.startswith("Diffusion"))
    measured = bench["measure"](workload)
    if measured["process_bytes"] is None:
        pytest.skip("nvidia-smi does not say what the process takes")
    span = bench["predict"](workload, gpu)["process_bytes"]
    assert span["low"] <= measured["process_bytes"] <= span["high"]
