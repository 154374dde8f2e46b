from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable

import pytest
import typer

from ebbtide import __version__
from ebbtide.cli import app as cli
from ebbtide.errors import EbbtideError, UsageError

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put one verb of the test's own into the table."""

    def put(function: Callable[..., object], name: str = "surf") -> None:
        module = types.ModuleType("surfing")
        vars(module)["surf"] = function
        monkeypatch.setitem(sys.modules, "surfing", module)
        monkeypatch.setitem(cli.VERBS, name, cli.Verb(target="surfing:surf", help="Ride."))

    return put


def failing(error: BaseException) -> Callable[[], None]:
    def surf() -> None:
        raise error

    return surf


def test_help_lists_every_verb_in_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in cli.VERBS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.help)}$", shown, re.MULTILINE)


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_loads_and_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: ebbtide {name} ")
    assert cli.VERBS[name].load().__doc__


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ebbtide {__version__}\n"


def test_nothing_asked_shows_the_help_and_is_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_an_unknown_verb_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predcit"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "predcit" in err and "predict" in err


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--frobnicate"]) == 2
    assert "--frobnicate" in capsys.readouterr().err


def test_a_verb_gets_its_arguments(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def surf(board: str, waves: int = 1) -> None:
        print(board * waves)

    verb(surf)
    assert cli.main(["surf", "long", "--waves", "2"]) == 0
    assert capsys.readouterr().out == "longlong\n"


def test_only_the_verb_that_was_named_is_imported(
    verb: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(cli.VERBS, "broken", cli.Verb(target="no.such.module:x", help="Never."))
    verb(lambda: None)
    assert cli.main(["surf"]) == 0
    assert cli.main(["broken"]) == 2
    assert "ModuleNotFoundError: No module named 'no'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("no such board"), 2), (EbbtideError("wiped out"), 1)],
    ids=["usage", "failure"],
)
def test_our_errors_end_with_one_message_on_stderr(
    error: EbbtideError,
    code: int,
    verb: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb(failing(error))
    assert cli.main(["surf"]) == code
    assert capsys.readouterr() == ("", f"ebbtide: {error}\n")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_verb_chooses_its_exit_code(code: int, verb: Callable[..., None]) -> None:
    verb(failing(typer.Exit(code)))
    assert cli.main(["surf"]) == code


def test_a_script_that_exits_with_a_message_has_failed(verb: Callable[..., None]) -> None:
    verb(failing(SystemExit("no waves")))
    assert cli.main(["surf"]) == 1


def test_a_bug_is_not_hidden_and_says_nothing_of_fitting(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(failing(ZeroDivisionError("ours")))
    assert cli.main(["surf"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback")
    assert "ZeroDivisionError: ours\nebbtide: This is a bug of Ebbtide." in err


def test_ctrl_c_ends_quietly(verb: Callable[..., None]) -> None:
    verb(failing(KeyboardInterrupt()))
    assert cli.main(["surf"]) == 130


def test_ctrl_c_during_the_import_of_a_verb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_self: cli.Verb) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.Verb, "load", interrupted)
    assert cli.main(["gpus"]) == 130
    assert capsys.readouterr() == ("", "")


def test_the_module_runs_as_a_program(run_cli: Run) -> None:
    done = run_cli("--version")
    assert (done.returncode, done.stdout) == (0, f"ebbtide {__version__}\n")


def test_help_has_no_colour_codes(run_cli: Run) -> None:
    done = run_cli("--help", env={"NO_COLOR": "1", "FORCE_COLOR": ""})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, time\n"
        "from ebbtide.cli.app import main; main(['--help'])\n"
        "print(time.process_time(), sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    assert min(timed(code) for _ in range(3)) < 0.3


def timed(code: str) -> float:
    """Seconds that `code` says it took, when it names no heavy module.

    Processor time, which other processes do not lengthen, and without coverage.
    """
    env = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    seconds, heavy = done.stdout.splitlines()[-1].split(maxsplit=1)
    assert heavy == "[]"
    return float(seconds)
