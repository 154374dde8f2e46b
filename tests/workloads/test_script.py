"""Scripts of all kinds: what they may do, how they may fail, and when they are ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.workloads.running import MODEL, alive, run, steps_of

from ebbtide.errors import ScriptError, TargetError, UsageError, VirtualGpuError
from ebbtide.trace.model import Category, Trace
from ebbtide.workloads.entry import load_function
from ebbtide.workloads.failures import OutOfVirtualMemoryError
from ebbtide.workloads.script import accumulated, failure_of, print_own_traceback, reported

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(96, 64))
"""
TRAINING = [f"{name} {step}" for step in (1, 2, 3) for name in ("forward", "backward", "optimizer")]


def kinds(trace: Trace) -> set[str]:
    return {guess.kind for guess in trace.guesses}


# -- what a script does


def test_a_training_loop_ends_when_enough_is_seen(tmp_path: Path) -> None:
    trace = run(tmp_path, MODEL, "for i in range(10_000): step()\n")
    assert trace.meta["steps"] == 5
    seen = [name for name in steps_of(trace) if not name.startswith(("setup", "between"))]
    assert seen[: len(TRAINING)] == TRAINING
    weights = 64 * 64 * 4
    assert (Category.PARAMETER, weights) in list(alive(trace))
    assert (Category.OPTIMIZER_STATE, weights) in list(alive(trace))
    assert trace.meta["batch"] is None


def test_loaders_end_and_the_script_goes_on(tmp_path: Path) -> None:
    trace = run(
        tmp_path,
        MODEL,
        LOADER,
        """
        for epoch in range(100):
            model.train()
            for (x,) in DataLoader(data, batch_size=4, shuffle=True):
                model(x.cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for (x,) in DataLoader(data, batch_size=32):
                    model(x.cuda())
        """,
    )
    assert "evaluation" in " ".join(steps_of(trace))
    assert (trace.meta["batch"], trace.meta["loader_batch"], trace.meta["batches"]) == (4, 4, 24)
    assert trace.meta["accumulated"] == 1


def test_arguments_and_neighbours_are_where_a_script_expects_them(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("SIZE = 7\n")
    trace = run(
        tmp_path,
        """
        import argparse, sys, helper
        assert __name__ == "__main__" and __file__.endswith("train.py")
        parser = argparse.ArgumentParser()
        parser.add_argument("--n", type=int)
        kept = torch.zeros(parser.parse_args().n, helper.SIZE, device="cuda")
        """,
        args=("--n", "{batch}"),
        batch=3,
    )
    assert trace.allocs.likely_bytes.tolist() == [4 * 3 * 7]
    assert trace.meta["batch"] == 3


def test_data_workers_processes_and_threads(tmp_path: Path) -> None:
    trace = run(
        tmp_path,
        MODEL,
        LOADER,
        """
        import multiprocessing, subprocess, threading
        def double(x):
            return 2 * x
        assert multiprocessing.get_context("fork").Pool(1).map(double, [4]) == [8]
        assert subprocess.check_output(["echo", "hi"]) == b"hi\\n"
        made = []
        thread = threading.Thread(target=lambda: made.append(torch.ones(5, device="cuda")))
        thread.start(); thread.join()
        assert made[0].is_cuda
        for (x,) in DataLoader(data, batch_size=8, num_workers=2, pin_memory=True):
            assert x.is_pinned() or not x.is_cuda
            step(len(x))
        """,
    )
    assert trace.meta["steps"] == 3
    assert trace.meta["batch"] == 8


def test_the_working_directory_may_change(tmp_path: Path) -> None:
    trace = run(tmp_path, "import os; os.chdir('/')", MODEL, "step()\nstep()\n")
    assert trace.meta["steps"] == 2


def test_handlers_at_exit_run_on_the_virtual_gpu(tmp_path: Path) -> None:
    note = tmp_path / "note"
    run(
        tmp_path,
        MODEL,
        f"""
        import atexit
        atexit.register(lambda: open({str(note)!r}, "w").write(str(torch.cuda.is_available())))
        step()
        """,
    )
    assert note.read_text() == "True"


def test_temporary_files_of_a_script_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    run(
        tmp_path,
        MODEL,
        f"""
        import tempfile
        kept = tempfile.TemporaryDirectory(dir={str(folder)!r})
        for i in range(100): step()
        """,
    )
    assert list(folder.iterdir()) == []


def test_alarms_of_a_script_are_its_own(tmp_path: Path) -> None:
    trace = run(
        tmp_path,
        MODEL,
        """
        import signal, time
        rang = []
        signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while not rang: time.sleep(0.01)
        step()
        """,
    )
    assert trace.meta["steps"] == 1


def test_inference_ends_when_it_needs_no_more(tmp_path: Path) -> None:
    trace = run(
        tmp_path,
        """
        model = nn.Linear(64, 64).cuda().eval()
        with torch.inference_mode():
            for i in range(100_000): model(torch.randn(4, 64, device="cuda"))
        """,
    )
    assert trace.meta["steps"] == 0
    assert 1 < trace.meta["forwards"] < 200
    assert {name.split()[0] for name in steps_of(trace)} >= {"inference"}


# -- the batch size of its loaders


ACCUMULATING = (
    MODEL
    + LOADER
    + """
for i, (x,) in enumerate(DataLoader(data, batch_size=4)):
    model(x.cuda()).sum().backward()
    if i % 2:
        optimizer.step(); optimizer.zero_grad()
"""
)


def test_accumulation_is_counted(tmp_path: Path) -> None:
    trace = run(tmp_path, ACCUMULATING)
    assert (trace.meta["batch"], trace.meta["accumulated"]) == (4, 2)


def test_loaders_can_be_given_another_size(tmp_path: Path) -> None:
    trace = run(tmp_path, ACCUMULATING, loader_batch=16, loader_batch_now=4)
    assert trace.meta["batch"] == 16
    inputs = trace.allocs.likely_bytes[trace.allocs.category == Category.INPUT]
    assert inputs.max() == 16 * 64 * 4


def test_a_size_without_a_loader_to_take_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no data loader"):
        run(tmp_path, MODEL, "step(); step()", loader_batch=16)


# -- how it may end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys; sys.exit(3)", "train.py ended itself with 3;"),
        ("import sys; sys.exit('no data')", "train.py ended itself with 'no data';"),
        ("1 / 0", r"failed with ZeroDivisionError: division by zero \(its traceback is above\)"),
        ("def f(:\n  pass", "failed with SyntaxError"),
        ("raise KeyError", r"failed with KeyError \(its"),
        ("import nothing_like_it", "failed with ModuleNotFoundError: No module named"),
        ("class Own(BaseException): pass\nraise Own('a\\nb')", r"failed with Own: a \("),
        ("print(nn.Linear(2, 2)(torch.ones(2)))", "without putting anything on `cuda`"),
        ("pass", "without putting anything on `cuda`"),
    ],
)
def test_failures(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        run(tmp_path, text)


@pytest.mark.parametrize("code", ["0", "None", ""])
def test_an_end_in_peace(tmp_path: Path, code: str) -> None:
    trace = run(tmp_path, MODEL, f"step()\nimport sys\nsys.exit({code})\n")
    assert trace.meta["steps"] == 1


def test_the_traceback_begins_in_the_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ScriptError):
        run(tmp_path, "def deep():\n    raise ValueError('bad')\ndeep()\n")
    shown = capfd.readouterr().err
    first = shown.splitlines()[1]
    assert shown.startswith("Traceback (most recent call last):")
    assert str(tmp_path / "train.py") in first and "in <module>" in first
    assert shown.rstrip().endswith("ValueError: bad")
    assert "runpy" not in shown and "ebbtide" not in shown.replace(str(tmp_path), "")


def test_a_syntax_error_looks_as_pythons(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ScriptError):
        run(tmp_path, "def f(:\n    pass\n")
    shown = capfd.readouterr().err
    assert shown.lstrip().startswith("File ")
    assert "def f(:" in shown and "Traceback" not in shown


def test_the_traceback_of_a_users_module_begins_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "fails_at_import.py"
    module.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        load_function(f"{module}:f")
    caught.value.__traceback__ = caught.tb.tb_next  # without the frame of this test
    print_own_traceback(caught.value)
    told = capsys.readouterr().err.splitlines()
    assert told[1] == f'  File "{module}", line 1, in <module>'


def test_a_users_function_that_fails() -> None:
    with pytest.raises(ScriptError, match=r"^m:f failed with KeyError: 'x'"), reported("m:f"):
        raise KeyError("x")
    with pytest.raises(TargetError, match=r"^ours$"), reported("m:f"):
        raise TargetError("ours")


@pytest.mark.parametrize("code", [3, "no data"])
def test_a_users_function_that_ends_the_process(
    code: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ScriptError, match=f"^m:f ended itself with {code!r}"), reported("m:f"):
        raise SystemExit(code)
    assert capsys.readouterr().err == (f"{code}\n" if isinstance(code, str) else "")


def test_the_virtual_gpus_own_errors_keep_their_class(tmp_path: Path) -> None:
    with pytest.raises(VirtualGpuError, match="world size of 1"):
        run(
            tmp_path,
            """
            import torch.multiprocessing as mp
            def work(rank): pass
            mp.spawn(work, nprocs=4)
            """,
        )


def test_what_fails_because_its_data_ended_early_is_a_guess(tmp_path: Path) -> None:
    trace = run(
        tmp_path,
        MODEL,
        LOADER,
        """
        losses = []
        for (x,) in DataLoader(data, batch_size=4):
            step(len(x)); losses.append(0.0)
        assert len(losses) == 24, "expected 24"
        """,
    )
    (guess,) = [guess for guess in trace.guesses if guess.kind == "ended"]
    assert "AssertionError: expected 24" in guess.text
    assert trace.meta["steps"] == 3


def test_time_is_limited(tmp_path: Path) -> None:
    before = time.monotonic()
    trace = run(tmp_path, MODEL, "step()\nwhile True: pass\n", seconds=1)
    assert time.monotonic() - before < 60
    assert trace.meta["steps"] == 1
    assert "time" in kinds(trace)


def test_a_script_that_swallows_the_end(tmp_path: Path) -> None:
    trace = run(
        tmp_path,
        MODEL,
        "while True:\n    try: step()\n    except: pass\n",
    )
    assert 5 <= trace.meta["steps"] < 20


def test_an_interrupt_is_no_failure_of_the_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ScriptError, match="code 130"):
        run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
    assert "KeyboardInterrupt" not in capfd.readouterr().err


# -- memory

# 40 GB on an L4.
LARGE = "x = torch.empty(10, 1 << 30, device='cuda')\n"


def test_without_a_limit_memory_never_ends(tmp_path: Path) -> None:
    trace = run(tmp_path, LARGE)
    assert trace.allocs.likely_bytes.sum() == 40 << 30


def test_running_out_is_told_apart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OutOfVirtualMemoryError, match="Tried to allocate 40.00 GiB"):
        run(tmp_path, LARGE, enforce=True)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "end",
    [
        "raise RuntimeError('my own words') from error",
        "import sys; sys.exit(1)",
        "print('too large, giving up')",
    ],
)
def test_a_script_that_gives_up_in_its_own_way(tmp_path: Path, end: str) -> None:
    text = f"try:\n    {LARGE}except torch.cuda.OutOfMemoryError as error:\n    {end}\n"
    with pytest.raises(OutOfVirtualMemoryError):
        run(tmp_path, MODEL, text, enforce=True)


def test_a_script_that_does_with_less(tmp_path: Path) -> None:
    trace = run(
        tmp_path,
        MODEL,
        """
        batch = 1 << 30
        while batch:
            try:
                for i in range(3): step(batch)
                break
            except torch.cuda.OutOfMemoryError:
                optimizer.zero_grad()
                batch //= 2
        print("batch", batch)
        """,
        enforce=True,
    )
    assert trace.meta["caught_out_of_memory"] >= 1
    assert "out-of-memory" in kinds(trace)
    assert trace.allocs.likely_bytes.max() <= 24 << 30


# -- small things


def test_one_line_on_a_failure() -> None:
    assert failure_of("t.py", ValueError("a.\nb")) == (
        "t.py failed with ValueError: a (its traceback is above)"
    )
    assert failure_of("t.py", KeyError()) == "t.py failed with KeyError (its traceback is above)"
    assert failure_of("t.py", ValueError("a"), shown=False) == "t.py failed with ValueError: a"
    assert "pass what it asks as arguments" in failure_of("t.py", EOFError("EOF when reading"))


def test_an_error_that_cannot_say_what_it_is() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert failure_of("t.py", MuteError()) == (
        "t.py failed with MuteError (its traceback is above)"
    )


@pytest.mark.parametrize(
    ("served", "backward", "found"), [(4, 4, 4), (2, 1, 1), (1, 3, 1), (0, 2, 1), (8, 4, 4)]
)
def test_batches_a_step(tmp_path: Path, served: int, backward: int, found: int) -> None:
    from tests.prediction.builder import Builder

    made = Builder()
    made.phase("backward", 1)
    for _ in range(backward):
        made.phase("forward", 2)
        made.phase("backward", 2)
    made.op("aten::mm")
    made.alloc(4)
    assert accumulated(made.build(), served) == found


def test_nothing_of_it_is_left_here() -> None:
    assert "train.py" not in os.listdir()
