"""Predict every public measurement and compare: `python bench/accuracy.py`.

Prints each row with the predicted range, the measured figure and the error, then the bounds
that the project holds itself to. Exit code 1 if a bound fails.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measured.result import Result

from ebbtide.workloads.torchvision_mend import mend_torchvision


def summary(result: Result) -> str:
    """One row's outcome for a log: the error, or why there is none."""
    if result.likely_bytes is None:
        return result.remark
    return f"{100 * result.error:+.2f} %, {result.seconds:.1f} s"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--filter", default="", metavar="REGEX", help="only rows whose id matches")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(arguments)
    mend_torchvision()
    from measured import cases, gates, progress, rivals, table
    from measured.case import case_of
    from measured.causes import cause
    from measured.rows import read_rows
    from measured.runner import result_of

    assert cases  # its import registers the workloads
    wanted = re.compile(options.filter)
    rows = [row for row in read_rows() if wanted.search(row.id)]
    if not rows:
        print(f"no row's id matches {options.filter!r}", file=sys.stderr)
        return 2
    results = []
    for number, row in enumerate(rows, 1):
        progress.show(f"{number}/{len(rows)} {row.id}")
        results.append(result_of(case_of(row)))
        if not sys.stderr.isatty():
            progress.show(f"    {summary(results[-1])}")
    progress.show("")
    others = rivals.read_rivals()
    bounds = gates.gates(results, others)
    if options.json:
        document = {
            "rows": [{**result.to_json(), "cause": cause(result)} for result in results],
            "bounds": [{"text": b.text, "found": b.found, "holds": b.holds} for b in bounds],
        }
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(table.lines(results)))
        if any(result.group == "xmem" for result in results):
            print("\nother estimators on the xMem rows")
            print("\n".join(table.rival_lines(others)))
        print("\nbounds")
        print("\n".join(table.gate_lines(bounds)))
    return 0 if all(bound.holds for bound in bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
