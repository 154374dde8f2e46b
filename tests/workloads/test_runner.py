"""The process beside ours: what it says, how it may end, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.prediction.builder import training

from ebbtide.errors import MissingExtraError, TargetError, VirtualGpuError
from ebbtide.trace.file import save_trace
from ebbtide.workloads import runner
from ebbtide.workloads.request import Request
from ebbtide.workloads.runner import run_request

REQUEST = Request(kind="script", target="train.py", gpus=("l4",))
SAY = """
import json, os, sys, time, subprocess, signal
def say(event, **data):
    print(json.dumps({"event": event, **data}), flush=True)
folder = os.path.dirname(sys.argv[-1])
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run another program in place of the one that runs workloads; folders in `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def put(text: str) -> None:
        monkeypatch.setattr(runner, "_CHILD", ("-c", SAY + textwrap.dedent(text)))

    return put


@pytest.fixture
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for batch in (4, 8, 16):
        save_trace(training(batch), folder / f"{batch}.trace")
    return folder


def left(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("ebbtide-*"))


def gone(process: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_traces_are_sorted_by_gpu_and_axis(child: Any, traces: Path, tmp_path: Path) -> None:
    child(
        f"""
        def trace(gpu, axis, batch):
            say("trace", gpu=gpu, axis=axis, path={str(traces)!r} + f"/{{batch}}.trace")
        trace("l4", "answer", 8)
        trace("l4", "batch", 16)
        trace("t4", "answer", 4)
        trace("l4", "seq", 4)
        say("no-curve", gpu="t4", axis="batch", text="it is too small")
        say("done")
        """
    )
    seen: list[dict[str, Any]] = []
    request = Request(kind="script", target="x.py", gpus=("l4", "t4"))
    found = run_request(request, seen.append)

    def size(trace: Any) -> int:
        return int(trace.allocs.likely_bytes.sum())

    assert list(found) == ["l4", "t4"]
    assert size(found["l4"].answer) == size(training(8))
    assert [size(each) for each in found["l4"].batches] == [size(training(16))]
    assert [size(each) for each in found["l4"].seqs] == [size(training(4))]
    assert (found["l4"].no_curve, found["t4"].no_curve) == ("", "it is too small")
    assert found["t4"].batches == ()
    assert [message["event"] for message in seen] == ["trace"] * 4 + ["no-curve"]
    assert left(tmp_path) == []


def test_the_request_arrives_with_its_folder(child: Any) -> None:
    child(
        """
        request = json.load(open(sys.argv[-1]))
        same = os.path.samefile(request["folder"], folder)
        say("error", kind="TargetError", text=f"{request['target']} {same}")
        """
    )
    with pytest.raises(TargetError, match=r"^train\.py True$"):
        run_request(REQUEST)


def test_it_reads_nothing_and_finds_ebbtide(child: Any) -> None:
    child(
        """
        import ebbtide
        say("error", kind="TargetError", text=repr(sys.stdin.read()) + ebbtide.__name__)
        """
    )
    with pytest.raises(TargetError, match=r"^''ebbtide$"):
        run_request(REQUEST)


def test_what_pytorch_compiles_goes_with_the_folder(
    child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(
        """
        name = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        say("error", kind="TargetError", text=os.path.relpath(name, folder))
        """
    )
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with pytest.raises(TargetError, match=r"^inductor$"):
        run_request(REQUEST)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/kept/by/the/user")
    with pytest.raises(TargetError, match=r"/kept/by/the/user$"):
        run_request(REQUEST)


def test_errors_keep_their_class(child: Any, tmp_path: Path) -> None:
    child("""say("error", kind="MissingExtraError", text="install it")""")
    with pytest.raises(MissingExtraError, match=r"^install it$"):
        run_request(REQUEST)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("sys.exit(7)", "ended with code 7 and gave no reason"),
        ("os.kill(os.getpid(), 11)", "ended with code -11 and gave no reason"),
        ("os.kill(os.getpid(), 9)", "was killed.*may be out of memory"),
    ],
)
def test_a_process_that_says_nothing(child: Any, end: str, message: str) -> None:
    child(end)
    with pytest.raises(VirtualGpuError, match=message):
        run_request(REQUEST)


@pytest.mark.parametrize("apart", [False, True])
def test_what_it_started_ends_with_it(child: Any, tmp_path: Path, apart: bool) -> None:
    note = tmp_path / "pid"
    child(
        f"""
        sleeper = subprocess.Popen(["sleep", "600"], start_new_session={apart})
        open({str(note)!r}, "w").write(str(sleeper.pid))
        say("error", kind="TargetError", text="x")
        """
    )
    with pytest.raises(TargetError):
        run_request(REQUEST)
    assert gone(int(note.read_text()))


def test_an_error_in_our_own_progress_leaves_nothing(child: Any, tmp_path: Path) -> None:
    child("""say("phase", text=str(os.getpid())); time.sleep(600)""")
    seen: list[str] = []

    def progress(message: dict[str, Any]) -> None:
        seen.append(message["text"])
        raise KeyError("ours")

    with pytest.raises(KeyError):
        run_request(REQUEST, progress)
    assert gone(int(seen[0]))
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, SystemExit),
        (signal.SIGHUP, SystemExit),
    ],
)
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_signal_ends_everything(
    child: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[BaseException],
    stubborn: bool,
) -> None:
    monkeypatch.setattr(runner, "_GOODBYE_S", 0.5)
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_DFL)
    ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)" if stubborn else ""
    child(
        f"""
        {ignore}
        sleeper = subprocess.Popen(["sleep", "600"])
        say("phase", text=f"{{os.getpid()}} {{sleeper.pid}}")
        time.sleep(600)
        """
    )
    seen: list[str] = []

    def progress(message: dict[str, Any]) -> None:
        seen.append(message["text"])
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()

    with pytest.raises(kind):
        run_request(REQUEST, progress)
    assert all(gone(int(process)) for process in seen[0].split())
    assert left(tmp_path) == []


def test_ctrl_c_before_it_has_begun_is_silent(
    child: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child("time.sleep(600)")  # as if it still imported
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run_request(REQUEST)
    assert capfd.readouterr() == ("", "")
    assert left(tmp_path) == []


def test_it_works_outside_the_main_thread(child: Any) -> None:
    child("""say("error", kind="TargetError", text="x")""")
    caught: list[BaseException] = []

    def run() -> None:
        try:
            run_request(REQUEST)
        except TargetError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert [str(error) for error in caught] == ["x"]


def test_handlers_are_put_back(child: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    child("""say("error", kind="TargetError", text="x")""")
    with pytest.raises(TargetError):
        run_request(REQUEST)
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_programs_own_handler_stays(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child("""say("phase", text="x"); say("error", kind="TargetError", text="x")""")
    during: list[Any] = []
    before = signal.signal(signal.SIGTERM, own := lambda *_: None)
    try:
        with pytest.raises(TargetError):
            run_request(REQUEST, lambda _: during.append(signal.getsignal(signal.SIGTERM)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert during == [own]


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, ebbtide.workloads.runner; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
