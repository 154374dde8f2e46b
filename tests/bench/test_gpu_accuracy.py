from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = runpy.run_path(str(ROOT / "bench" / "gpu_accuracy.py"))
Row, Workload, WORKLOADS = BENCH["Row"], BENCH["Workload"], BENCH["WORKLOADS"]
GiB = 1 << 30

MEASURED = {
    "allocated_bytes": 10 * GiB,
    "reserved_bytes": 12 * GiB,
    "process_bytes": None,
    "step_s": 0.25,
}
PREDICTED = {
    "peak_allocated_bytes": 10 * GiB + GiB // 20,
    "peak_reserved_bytes": 12 * GiB,
    "process_bytes": {"low": 12 * GiB, "likely": 12 * GiB, "high": 13 * GiB},
    "step_s": 0.2,
}


def test_there_are_at_least_a_dozen_workloads_with_names_of_their_own() -> None:
    assert len({each.name for each in WORKLOADS}) == len(WORKLOADS) >= 12


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_script_takes_its_arguments(workload: Any) -> None:
    source = workload.script.read_text(encoding="utf-8")
    ast.parse(source)
    assert "cuda" in source and "ebbtide" not in source
    for word in workload.args:
        assert not word.startswith("--") or f'"{word}"' in source


def test_error_is_relative_to_what_was_measured() -> None:
    row = Row(name="a", measured=MEASURED, predicted=PREDICTED)
    assert row.error("allocated") == pytest.approx(0.005)
    assert row.error("reserved") == 0


def test_a_row_without_figures_has_no_error() -> None:
    assert Row(name="a", reason="no time left").error("allocated") is None


def test_table_shows_figures_reasons_and_medians() -> None:
    rows = [
        Row(name="one", measured=MEASURED, predicted=PREDICTED),
        Row(name="two", reason="timm not installed"),
    ]
    head, rule, one, two, *rest = BENCH["table"](rows).splitlines()
    assert one == (
        "| one | 10.000 | 10.050 | +0.50% | 12.000 | 12.000 | +0.00% "
        "| - | 12.000 to 13.000 | 250.0 | 200.0 |"
    )
    assert "timm not installed" in two
    columns = {line.count("|") for line in (head, rule, one, two)}
    assert columns == {12}
    assert "Median error of allocated: 0.50%, largest 0.50%, of 1 workloads." in "\n".join(rest)


@pytest.mark.parametrize(
    ("packages", "needs_gib", "reason"),
    [
        (("json",), 1, None),
        (("json", "no_such_package"), 1, "no_such_package not installed"),
        ((), 25, "takes about 25 GiB"),
    ],
)
def test_reason_to_skip(packages: tuple[str, ...], needs_gib: float, reason: str | None) -> None:
    workload = Workload(name="a", script=Path("a.py"), packages=packages, needs_gib=needs_gib)
    assert BENCH["reason_to_skip"](workload, 24 * GiB) == reason


def test_a_failing_run_says_why() -> None:
    with pytest.raises(BENCH["WorkloadFailed"], match="exit code 3: no waves"):
        BENCH["_run"]([sys.executable, "-c", "import sys; print('no waves'); sys.exit(3)"])


def test_an_answer_of_does_not_fit_is_an_answer() -> None:
    command = [sys.executable, "-c", "import sys; print('{}'); sys.exit(1)"]
    assert BENCH["_run"](command, accept=(0, 1)) == "{}\n"


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        BENCH["main"]([])
