from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "line_budget.py"


@pytest.fixture(scope="module")
def budget() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """A small repository with the given files and twice as many lines of tests."""

    def make(tests: int | None = None, **files: str) -> Path:
        (tmp_path / "src").mkdir()
        (tmp_path / "tests").mkdir()
        for name, text in files.items():
            (tmp_path / "src" / f"{name}.py").write_text(text)
        total = sum(len(text.splitlines()) for text in files.values())
        lines = 2 * total if tests is None else tests
        (tmp_path / "tests" / "test_all.py").write_text("x = 1\n" * lines)
        return tmp_path

    return make


def function(lines: int, name: str = "f") -> str:
    return f"def {name}():\n" + "    x = 1\n" * (lines - 1)


def test_a_small_tree_is_within_budget(budget: dict[str, Any], tree: Callable[..., Path]) -> None:
    assert budget["complaints"](tree(one=function(40), two=function(10))) == []


def test_no_code_is_no_success(budget: dict[str, Any], tmp_path: Path) -> None:
    assert "No Python files" in budget["complaints"](tmp_path)[0]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"one": "x = 1\n" * 501, "two": "x = 1\n"}, "501 lines, at most 500"),
        ({"one": function(81)}, ":1 f: 81 lines, at most 80"),
        ({"one": function(41)}, "1 of 1 functions are over 40 lines"),
        ({"one": "x = 1\n" * 201}, "The median file has 201 lines"),
        ({f"m{i}": "x = 1\n" * 200 for i in range(191)}, "src/ has 38200 lines"),
    ],
    ids=["file", "function", "usual function", "median", "total"],
)
def test_what_is_over_is_named(
    files: dict[str, str],
    complaint: str,
    budget: dict[str, Any],
    tree: Callable[..., Path],
) -> None:
    assert any(complaint in line for line in budget["complaints"](tree(**files)))


def test_too_few_tests_are_named(budget: dict[str, Any], tree: Callable[..., Path]) -> None:
    (line,) = budget["complaints"](tree(one="x = 1\n" * 100, tests=84))
    assert "84 lines for 100 of src/ (0.84 each), at least 0.85" in line


def test_nested_functions_and_methods_count(budget: dict[str, Any]) -> None:
    source = "class A:\n    def m(self):\n        def inner():\n            pass\n"
    found = budget["functions"](Path("a.py"), source)
    assert {f.place: f.lines for f in found} == {"a.py:2 m": 3, "a.py:3 inner": 2}


@pytest.mark.parametrize(("lines", "code"), [(10, 0), (81, 1)])
def test_exit_code(lines: int, code: int, tree: Callable[..., Path]) -> None:
    root = tree(one=function(lines))
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    assert done.returncode == code, done.stdout
