"""Processes of a workload are found by a mark in their environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebbtide.workloads import descendants
from ebbtide.workloads.descendants import MARK, end_marked

Start = Callable[..., "subprocess.Popen[bytes]"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command or ("sleep", "600"), env={**os.environ, **env}, start_new_session=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_a_session_of_its_own_does_not_hide_it(start: Start) -> None:
    ours, others, unmarked = start(**{MARK: "/tmp/a"}), start(**{MARK: "/tmp/ab"}), start()
    end_marked("/tmp/a")
    assert ours.wait(20) == -9
    time.sleep(0.1)
    assert others.poll() is None and unmarked.poll() is None


def test_what_they_start_meanwhile_is_found_too(start: Start, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    shell = f"setsid sleep 600 & echo $! > {note}.new; mv {note}.new {note}; wait"
    start("sh", "-c", shell, **{MARK: str(tmp_path)})
    deadline = time.monotonic() + 20
    while not note.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    end_marked(str(tmp_path))
    deadline = time.monotonic() + 20
    while list(descendants._marked(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(descendants._marked(str(tmp_path))) == []
    stat = Path(f"/proc/{int(note.read_text())}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_nobody_is_marked() -> None:
    end_marked("/no/such/folder")


def test_without_proc_nothing_happens(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = start(**{MARK: "here"})
    monkeypatch.setattr(descendants, "_PROC", tmp_path / "none")
    end_marked("here")
    time.sleep(0.1)
    assert process.poll() is None
