"""Fail when code grows beyond its budget: file and function lengths, and tests per line.

    python tools/line_budget.py [ROOT]

Lines are physical lines. The limits are the house rules in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

TOTAL_LINES = 38_000
FILE_LINES = 500
MEDIAN_FILE_LINES = 200
FUNCTION_LINES = 80
USUAL_FUNCTION_LINES = 40
LONGER_FUNCTIONS_SHARE = 0.05
# The aim is 1.5 (CONTRIBUTING.md); this is how far it has come, and it only goes up.
TEST_LINES_PER_LINE = 0.85


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function or method: where it is and how many lines it takes, decorators apart."""

    place: str
    lines: int


def functions(path: Path, source: str) -> list[Function]:
    """Every function in `source`, nested ones included."""
    found = []
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.append(Function(place=f"{path}:{node.lineno} {node.name}", lines=lines))
    return found


def line_counts(folder: Path) -> dict[Path, int]:
    """Physical lines of every Python file below `folder`, empty files left out."""
    counts = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for path in sorted(folder.rglob("*.py"))
    }
    return {path: lines for path, lines in counts.items() if lines}


def complaints(root: Path) -> list[str]:
    """What is over budget below `root`, one sentence each; empty when all is well."""
    files = line_counts(root / "src")
    if not files:
        return [f"No Python files below {root / 'src'}."]
    total = sum(files.values())
    tests = sum(line_counts(root / "tests").values())
    every = [f for path in files for f in functions(path, path.read_text(encoding="utf-8"))]
    found = [f"{p}: {n} lines, at most {FILE_LINES}" for p, n in files.items() if n > FILE_LINES]
    found += [
        f"{f.place}: {f.lines} lines, at most {FUNCTION_LINES}"
        for f in every
        if f.lines > FUNCTION_LINES
    ]
    median = statistics.median(files.values())
    longer = sum(f.lines > USUAL_FUNCTION_LINES for f in every)
    if median > MEDIAN_FILE_LINES:
        found.append(f"The median file has {median:g} lines, at most {MEDIAN_FILE_LINES}")
    if longer > LONGER_FUNCTIONS_SHARE * len(every):
        found.append(
            f"{longer} of {len(every)} functions are over {USUAL_FUNCTION_LINES} lines, "
            f"at most {LONGER_FUNCTIONS_SHARE:.0%}"
        )
    if total > TOTAL_LINES:
        found.append(f"src/ has {total} lines, at most {TOTAL_LINES}")
    if tests < TEST_LINES_PER_LINE * total:
        found.append(
            f"tests/ has {tests} lines for {total} of src/ ({tests / total:.2f} each), "
            f"at least {TEST_LINES_PER_LINE}"
        )
    return found


def main(argv: list[str]) -> int:
    """Print what is over budget and return the exit code."""
    root = Path(argv[0]) if argv else Path(__file__).resolve().parents[1]
    found = complaints(root)
    for line in found:
        print(line)
    if not found:
        files = line_counts(root / "src")
        print(
            f"{sum(files.values())} lines in {len(files)} files of src/, median "
            f"{statistics.median(files.values()):g}: within budget"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
