from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def check() -> dict[str, Any]:
    """The script with two checks of the test's own."""
    script = runpy.run_path(str(ROOT / "tools" / "check.py"))
    script["CHECKS"].clear()
    script["CHECKS"]["good"] = [sys.executable, "-c", "print('all is well')"]
    script["CHECKS"]["bad"] = [sys.executable, "-c", "print('a leak'); raise SystemExit(3)"]
    return script


def test_all_run_even_when_one_fails(
    check: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    check["CHECKS"]["last"] = check["CHECKS"]["good"]
    assert check["main"]([]) == 1
    out = capfd.readouterr().out
    assert "a leak" in out and "all is well" not in out
    assert [line.split()[1] for line in out.splitlines() if " s" in line] == ["ok", "FAILED", "ok"]
    assert out.splitlines()[-1] == "Failed: bad"


def test_one_can_be_named(check: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert check["main"](["good"]) == 0
    assert capfd.readouterr().out.endswith("All checks passed.\n")


def test_an_unknown_name_is_wrong_usage(
    check: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert check["main"](["goood"]) == 2
    assert capfd.readouterr().err == "No check goood. There are: good, bad.\n"


def test_ci_runs_what_developers_run() -> None:
    ran = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "timed make test" in ran and "timed make check" in ran


@pytest.mark.parametrize(
    "script",
    re.findall(r"\b(?:bench|tools|examples)/\w+\.\w+", (ROOT / "Makefile").read_text()),
)
def test_what_the_makefile_runs_exists(script: str) -> None:
    assert (ROOT / script).is_file()
