"""Standard streams that are closed, full, or that nobody reads to the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.prediction.builder import training

from ebbtide.trace.file import save_trace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell is used")
EBBTIDE = f"{sys.executable} -m ebbtide"


def shell(command: str, *, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("options", [("--json",), ()])
def test_a_reader_that_leaves_changes_no_exit_code(tmp_path: Path, options: Sequence[str]) -> None:
    save_trace(training(8), tmp_path / "run.trace")
    save_trace(training(9_000, width=4096), tmp_path / "large.trace")
    line = " ".join(options)
    for name, code in (("run", 0), ("large", 1)):
        command = f"({EBBTIDE} predict {name}.trace {line}; echo $? >&2) | head -c 3"
        _, out, err = shell(command, cwd=tmp_path)
        assert len(out.encode()) == 3
        assert err == f"{code}\n"


def test_a_full_disk_is_said_in_a_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    code, _, err = shell(f"{EBBTIDE} gpus l4 --json > /dev/full")
    assert code == 2
    assert err == "ebbtide: The output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-"])
def test_closed_streams_leave_stdout_to_the_data(closed: str) -> None:
    code, out, _ = shell(f"{EBBTIDE} gpus l4 --json {closed}")
    assert code == 0
    assert [entry["gpu"] for entry in json.loads(out)] == ["l4"]
    code, out, _ = shell(f"{EBBTIDE} gpus l40z --json {closed}")
    assert (code, out) == (2, "")


def test_without_a_stdout_there_is_still_an_answer() -> None:
    code, out, err = shell(f"{EBBTIDE} gpus l4 --json >&-")
    assert (code, out, err) == (0, "", "")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_is_opened_is_there_for_other_processes_too(number: int) -> None:
    code = (
        "import os, subprocess, sys\n"
        "from ebbtide.cli.streams import open_standard_streams\n"
        f"os.close({number})\n"
        "open_standard_streams()\n"
        f"inner = 'import os; os.fstat({number})'\n"
        "sys.exit(subprocess.run([sys.executable, '-c', inner]).returncode)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
