"""Every example in the README, CONTRIBUTING, docs/ and examples/ runs.

* A ``python`` block runs as a program of its own.
* A ``console`` block: each line after ``$ `` is run; the lines below it, when there are
  any, are what it prints. ``...`` there stands for anything, and so does a number with
  an ``s`` (seconds differ from run to run).
* ``make`` and ``pip`` lines are not run (they are the set-up itself): the target and
  the extra must exist.

A block that cannot run here carries ``<!-- not run: REASON -->`` above it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SNAPSHOT = ROOT / "tests/data/snapshots/wed_medium_1024_training_memory_snapshot.pickle.gz"
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NAMED_KINDS = {"python", "console", "text", "yaml", "json", "toml", "diff"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    kind: str
    body: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_in(page: Path, text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("kind")) + 1,
            kind=found["kind"],
            body=found["body"],
            reason=found["reason"],
        )


BLOCKS = [block for page in PAGES for block in blocks_in(page, page.read_text(encoding="utf-8"))]
PYTHON = [block for block in BLOCKS if block.kind == "python" and not block.reason]
CONSOLE = [block for block in BLOCKS if block.kind == "console" and not block.reason]


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block with the output that the page shows for it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        command = lines.pop(0)
        while command.endswith("\\\n") and lines:
            command = command[:-2] + lines.pop(0).strip() + "\n"
        yield command.strip(), "".join(lines).strip()


def shape(shown: str) -> re.Pattern[str]:
    """What the page shows, as a pattern."""
    pattern = re.escape(shown).replace(re.escape("..."), ".*?")
    pattern = re.sub(r"\d+(?:\\\.\d+)?(?=(?:\\ )s\b)", r"\\d+(?:\\.\\d+)?", pattern)
    pattern = re.sub(r"(?:\\ |[ \t])*\\?\n", r"[ \\t]*\\n", pattern)
    return re.compile(pattern, re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder in which an example may write, with the examples and a real snapshot in it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "snapshot.pickle.gz").symlink_to(SNAPSHOT)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_example(block: Block, workplace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", block.body],
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_console_example(block: Block, workplace: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, shown in commands(block.body):
        if is_setup(command):
            check_setup(command)
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=workplace,
            env={**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        # 1 is an answer: it does not fit.
        assert done.returncode in (0, 1), f"{block}: {command}\n{done.stdout}{done.stderr}"
        assert done.stdout or done.returncode == 0, f"{block}: {command}\n{done.stderr}"
        if shown:
            assert shape(shown).search(done.stdout), f"{block}: {command} printed\n{done.stdout}"


def is_setup(command: str) -> bool:
    return shlex.split(command)[0] in {"make", "pip", "git", "cd"}


def check_setup(command: str) -> None:
    program, *words = shlex.split(command, comments=True)
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words) <= targets, f"no such target: {command}"
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in re.findall(r"\[([\w,]+)\]", command):
            assert set(extra.split(",")) <= set(project["optional-dependencies"]), command


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_says_what_it_is(block: Block) -> None:
    assert block.kind in NAMED_KINDS, f"{block}: a block of kind {block.kind!r}"
    if block.kind == "console":
        assert list(commands(block.body)), f"{block}: a console block without a command"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_an_open_fence(page: Path) -> None:
    assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_are_read_with_their_output() -> None:
    body = "$ ebbtide gpus \\\n    --json\nl4\n$ make demo\n"
    assert list(commands(body)) == [("ebbtide gpus --json", "l4"), ("make demo", "")]


@pytest.mark.parametrize(
    ("shown", "printed", "matches"),
    [
        ("fits: 3.1 GiB", "fits: 3.1 GiB", True),
        ("fits: 3.1 GiB", "fits: 3.2 GiB", False),
        ("took 4.5 s", "took 12 s", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a\nz", "a  \nz", True),
        ("a\nz", "a\nb\nz", False),
    ],
)
def test_what_a_page_shows_is_compared(shown: str, printed: str, matches: bool) -> None:
    assert bool(shape(shown).search(printed)) is matches


def test_a_reason_is_read() -> None:
    text = "<!-- not run: needs a GPU -->\n\n```python\nx\n```\n"
    (block,) = blocks_in(ROOT / "README.md", text)
    assert (block.reason, block.kind, block.body, block.line) == ("needs a GPU", "python", "x\n", 3)
