"""Run every static check and say which failed: what `make check` and CI do.

    python tools/check.py [NAME...]

All checks run even when one fails, so that one run shows everything.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

CHECKS: dict[str, list[str]] = {
    "ruff": [f"{BIN}/ruff", "check", "--quiet", "."],
    "format": [f"{BIN}/ruff", "format", "--check", "--quiet", "."],
    "mypy": [f"{BIN}/mypy", "--no-error-summary"],
    "imports": [f"{BIN}/lint-imports", "--no-cache"],
    "budget": [sys.executable, "tools/line_budget.py"],
    "changelog": [f"{BIN}/towncrier", "build", "--draft", "--version", "next"],
    "docs": [f"{BIN}/mkdocs", "build", "--strict", "--quiet", "--clean"],
}


def main(names: list[str]) -> int:
    """Run the named checks, or all; return 1 when one failed, 2 for an unknown name."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"No check {', '.join(unknown)}. There are: {', '.join(CHECKS)}.", file=sys.stderr)
        return 2
    failed = [name for name in names or CHECKS if not passes(name)]
    print(f"Failed: {', '.join(failed)}" if failed else "All checks passed.")
    return 1 if failed else 0


def passes(name: str) -> bool:
    """Run one check; its output is shown only when it fails."""
    start = time.monotonic()
    done = subprocess.run(
        CHECKS[name], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    verdict = "ok" if done.returncode == 0 else "FAILED"
    print(f"{name:10} {verdict:6} {time.monotonic() - start:5.1f} s", flush=True)
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
