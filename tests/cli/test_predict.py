"""`ebbtide predict` on saved traces, which needs no process beside this one, and its refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.prediction.builder import training

from ebbtide.cli.app import main
from ebbtide.cli.predict import parse_batches
from ebbtide.errors import UsageError, VirtualGpuError
from ebbtide.prediction.curve import BATCHES
from ebbtide.prediction.result import Prediction
from ebbtide.trace.file import load_trace, save_trace

Show = Callable[..., tuple[int, str, str]]


@pytest.fixture
def show(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Show:
    """Run ``ebbtide predict`` in an empty folder; its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)

    def run(*args: str | Path) -> tuple[int, str, str]:
        code = main(["predict", *map(str, args)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.trace"
    save_trace(training(8), path)
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# -- answers


def test_it_fits_the_gpu_of_the_trace(show: Show, saved: Path) -> None:
    code, out, err = show(saved)
    assert (code, err) == (0, "")
    assert out.startswith("✔ fits an L4 with ")


def test_json_is_one_document_and_nothing_else(show: Show, saved: Path) -> None:
    code, out, err = show(saved, "--json", "--gpu", "t4")
    assert (code, err) == (0, "")
    assert Prediction.from_json(json.loads(out)).gpu == "t4"
    code, out, err = show(saved, "--json", "--gpu", "t4", "--gpu", "l4", "-g", "T4")
    assert [each["gpu"] for each in json.loads(out)] == ["t4", "l4"]


def test_the_settings_that_a_trace_was_made_with_are_told(show: Show, saved: Path) -> None:
    assert json.loads(show(saved, "--json")[1])["assumed"] == ""
    trace = training(8)
    assumed = "training, batch 8, 512 tokens, float32, AdamW; configuration: bundled gpt2"
    save_trace(replace(trace, meta={**trace.meta, "assumed": assumed}), saved)
    assert json.loads(show(saved, "--json")[1])["assumed"] == assumed
    assert show(saved)[1].splitlines()[1] == f"  {assumed}"


def test_what_does_not_fit_one_of_them_is_code_1(show: Show, tmp_path: Path) -> None:
    path = tmp_path / "large.trace"
    save_trace(training(5_000, width=4096, layers=2), path)
    code, out, err = show(path, "--json", "--gpu", "t4", "--gpu", "b200")
    assert [each["fits"] for each in json.loads(out)] == [False, True]
    assert (code, err) == (1, "")


def test_any_is_every_gpu_that_has_cuda(show: Show, saved: Path) -> None:
    code, out, _ = show(saved, "--json", "--gpu", "any")
    keys = [each["gpu"] for each in json.loads(out)]
    assert code == 0
    assert len(keys) == len(set(keys)) >= 35 and "mi300x" not in keys


def test_files_are_written(show: Show, saved: Path, tmp_path: Path) -> None:
    code, _, err = show(saved, "--html", "r é.html", "--save", "again.trace")
    assert (code, err) == (0, "")
    assert (tmp_path / "r é.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert len(load_trace(tmp_path / "again.trace").ops.name) == len(load_trace(saved).ops.name)
    assert files(tmp_path) == {"run.trace", "again.trace", "r é.html"}


def test_they_are_overwritten_on_request_only(show: Show, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text("mine")
    code, out, err = show(saved, "--html", "r.html")
    assert (code, out) == (2, "")
    assert err == "ebbtide: r.html exists already. Use --force to overwrite it.\n"
    assert (tmp_path / "r.html").read_text() == "mine"
    assert show(saved, "--html", "r.html", "--force")[0] == 0
    assert (tmp_path / "r.html").read_text() != "mine"


# -- refusals: one line on stderr, code 2, nothing written


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gpu", "l40z"], "No GPU called 'l40z' is known. Did you mean l40, l40s,"),
        (["--gpu", ""], "No GPU called '' is known."),
        (["--gpu", "mi300x"], "AMD Instinct MI300X is in the catalogue for its memory figures"),
        (["--batch", "0"], "batch: expected an integer of at least 1, got 0"),
        (["--batch", "-1"], "batch: expected an integer of at least 1, got -1"),
        (["--batches", "1.."], "--batches: expected 1..256 or 8,16,24, got '1..'"),
        (["--batches", "8..1"], "--batches: expected the smaller size first, got '8..1'"),
        (["--batches", "0..4"], "--batches: expected sizes of at least 1, got '0..4'"),
        (["--seconds", "nan"], "--seconds: expected a time above zero, got nan"),
        (["--dtype", "int7"], "dtype: expected one of fp32, bf16, fp16, got 'int7'"),
        (["--lora", "x"], "lora: expected a rank and layer names"),
        (["--quantize", "int8"], "--quantize does nothing here"),
        (["--kv-tokens", "9"], "--kv-tokens does nothing here"),
        (["--kv-tokens", "9", "--lora", "4"], "kv_tokens: a cache is held in inference only"),
        (["--seq", "9"], "--seq does nothing here"),
        (["--html", "no/r.html"], "no/r.html cannot be written: there is no folder no."),
        (["--html", "."], ". is a folder. Name a file."),
        (["--save", "r.html"], "--save: name it r.trace"),
        (["--save", "x.trace", "--html", "./x.trace"], "--html and --save both name x.trace"),
        (["--", "--lr", "1"], "is no script, so it takes no arguments of its own"),
    ],
)
def test_one_line_says_what_is_wrong(
    show: Show, saved: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    code, out, err = show(saved, *args, *([] if "--" in args else ["--json"]))
    assert (code, out) == (2, "")
    assert err.startswith("ebbtide: ") and err.count("\n") == 1
    assert message in err
    assert files(tmp_path) == {"run.trace"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "The target is empty."),
        ("none.trace", "There is no file 'none.trace'."),
        ("none.py", "There is no file 'none.py'."),
        ("folder.py", "'folder.py' is a folder."),
        ("note.txt", "'note.txt' is a file of an unknown kind."),
        ("noise.trace", "noise.trace cannot be read as a trace"),
    ],
)
def test_what_is_no_target(show: Show, tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "noise.trace").write_bytes(b"PK\x03\x04noise")
    before = files(tmp_path)
    code, out, err = show(target, "--json")
    assert (code, out) == (2, "")
    assert err.startswith("ebbtide: ") and err.count("\n") == 1
    assert message in err
    assert files(tmp_path) == before


def test_a_folder_that_cannot_be_written(
    show: Show, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root may write anywhere
    code, _, err = show(saved, "--html", "r.html")
    assert (code, "read-only" in err) == (2, True)


def test_no_answer_is_no_statement_about_fitting(
    show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_args: object) -> None:
        raise VirtualGpuError("it does not work here")

    monkeypatch.setattr("ebbtide.prediction.predict.run_request", dies)
    (tmp_path / "train.py").write_text("")
    assert show("train.py") == (2, "", "ebbtide: it does not work here\n")


# -- batch sizes


def test_sizes_of_the_curve() -> None:
    assert parse_batches(None) == BATCHES
    assert parse_batches("24, 8,16,8") == (8, 16, 24)
    assert parse_batches("5..5") == (5,)
    assert parse_batches("1..4") == (1, 2, 3, 4)
    made = parse_batches("1..256")
    assert made[0] == 1 and made[-1] == 256 and {16, 32, 64, 128} <= set(made)
    assert len(parse_batches("3..999999999")) <= 32


@pytest.mark.parametrize(
    "text", ["", "1..", "..8", "a..b", "8..1", "0..4", "0", "8,", "1,,2", "-4"]
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--batches: expected"):
        parse_batches(text)
