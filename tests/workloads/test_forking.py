"""Work in a fork: its errors come back, its process is gone, its time is limited."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from ebbtide.errors import ScriptError, TargetError
from ebbtide.workloads import forking
from ebbtide.workloads.failures import OutOfVirtualMemoryError
from ebbtide.workloads.forking import Forks

STOP = signal.SIGUSR2


@pytest.fixture
def forks(tmp_path: Path) -> Forks:
    return Forks(tmp_path, STOP)


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def dying(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_what_it_does_to_the_process_is_gone(forks: Forks, tmp_path: Path) -> None:
    def work() -> None:
        os.environ["EBBTIDE_FORKED"] = "yes"
        os.chdir("/")
        (tmp_path / "ran").write_text(str(os.getpid()))

    here = os.getcwd()
    forks.run(work, seconds=60)
    assert "EBBTIDE_FORKED" not in os.environ
    assert os.getcwd() == here
    assert (tmp_path / "ran").read_text() != str(os.getpid())


@pytest.mark.parametrize("kind", [ScriptError, TargetError, OutOfVirtualMemoryError])
def test_our_errors_come_back(forks: Forks, kind: type[ScriptError]) -> None:
    with pytest.raises(kind, match=r"^no luck$") as caught:
        forks.run(raising(kind("no luck")), seconds=60)
    assert type(caught.value) is kind


def test_an_old_error_is_not_taken_for_a_new_one(forks: Forks) -> None:
    with pytest.raises(TargetError):
        forks.run(raising(TargetError("first")), seconds=60)
    with pytest.raises(ScriptError, match="crashed"):
        forks.run(dying(signal.SIGABRT), seconds=60)
    forks.run(lambda: None, seconds=60)


def test_other_errors_are_printed(forks: Forks, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ScriptError, match="ended its process with code 1"):
        forks.run(raising(KeyError("where")), seconds=60)
    assert "KeyError: 'where'" in capfd.readouterr().err


@pytest.mark.parametrize("code", [1, 3, 255])
def test_a_process_that_ends_itself(forks: Forks, code: int) -> None:
    with pytest.raises(ScriptError, match=f"with code {code};"):
        forks.run(lambda: os._exit(code), seconds=60)


def test_a_crash_is_named_and_located(forks: Forks, capfd: pytest.CaptureFixture[str]) -> None:
    def reads_nothing() -> None:
        ctypes.string_at(0)

    with pytest.raises(ScriptError, match=r"crashed \(SIGSEGV\)"):
        forks.run(reads_nothing, seconds=60)
    assert "in reads_nothing" in capfd.readouterr().err


def test_a_kill_points_at_the_machines_memory(forks: Forks) -> None:
    with pytest.raises(ScriptError, match=r"killed \(SIGKILL\).*out of memory"):
        forks.run(dying(signal.SIGKILL), seconds=60)


def test_a_signal_without_a_name(forks: Forks) -> None:
    with pytest.raises(ScriptError, match=r"crashed \((SIGRTMIN|signal \d+)"):
        forks.run(dying(signal.SIGRTMIN + 3), seconds=60)


def test_an_interrupt_is_silent(forks: Forks, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ScriptError, match="code 130"):
        forks.run(raising(KeyboardInterrupt()), seconds=60)
    assert "Traceback" not in capfd.readouterr().err


def chatty() -> None:
    # Past Python's own streams, which pytest has replaced.
    os.write(2, b"to stderr\n")
    os.system("echo from a child")


def test_output_goes_through(forks: Forks, capfd: pytest.CaptureFixture[str]) -> None:
    forks.run(chatty, seconds=60)
    shown = capfd.readouterr()
    assert "to stderr" in shown.err
    assert "from a child" in shown.out


def test_quiet_keeps_output_back(forks: Forks, capfd: pytest.CaptureFixture[str]) -> None:
    forks.run(chatty, seconds=60, quiet=True)
    shown = capfd.readouterr()
    assert "to stderr" not in shown.err + shown.out
    assert "from a child" not in shown.err + shown.out


def test_quiet_shows_it_after_a_failure(forks: Forks, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        chatty()
        raise TargetError("no")

    with pytest.raises(TargetError):
        forks.run(work, seconds=60, quiet=True)
    assert "from a child" in capfd.readouterr().err


def test_descriptors_that_are_not_for_the_fork(tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def work() -> None:
        with pytest.raises(OSError):
            os.write(writing, b"x")

    Forks(tmp_path, STOP, close=(writing,)).run(work, seconds=60)
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)


class Told(BaseException):
    pass


def handler(_number: int, _frame: FrameType | None) -> None:
    raise Told


def listening(forks: Forks) -> None:
    signal.signal(STOP, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP})
    forks.started()


def test_it_is_told_to_stop(forks: Forks, tmp_path: Path) -> None:
    def work() -> None:
        listening(forks)
        try:
            time.sleep(60)
        except Told:
            (tmp_path / "told").touch()

    before = time.monotonic()
    forks.run(work, seconds=0.2)
    assert (tmp_path / "told").exists()
    assert time.monotonic() - before < 30


def test_its_time_runs_from_when_it_is_ready(forks: Forks, tmp_path: Path) -> None:
    def work() -> None:
        time.sleep(0.5)  # imports
        listening(forks)
        (tmp_path / "ready").touch()

    forks.run(work, seconds=0.2)
    assert (tmp_path / "ready").exists()


def test_who_does_not_stop_is_killed(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "GRACE_S", 0.3)

    def work() -> None:
        listening(forks)
        while True:
            try:
                time.sleep(60)
            except Told:
                continue

    with pytest.raises(ScriptError, match=r"told to stop after 0 s and did not within 0 s"):
        forks.run(work, seconds=0.2)
    with pytest.raises(ChildProcessError):  # nobody is left
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_process_dies_with_the_one_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from ebbtide.workloads.forking import die_with_parent\n"
        "if os.fork() == 0:\n"
        "    die_with_parent()\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(child)


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
