"""Ours and four other tools on the same measured rows: `python bench/predict.py`.

For each row the figure of every tool, its error against what was measured, and the seconds
of CPU time it took after its imports, which other work on the machine does not change; then
the median error of each tool. Two of the tools take an hour for all rows together: with
``--keep FILE`` each answer is written there as it comes, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ebbtide.workloads.torchvision_mend import mend_torchvision

OURS = "ebbtide"
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one tool said of one row in `seconds` of CPU time; where it failed, `text` says why."""

    row: str
    tool: str
    predicted_bytes: int | None
    measured_bytes: int
    seconds: float
    text: str = ""

    @property
    def error(self) -> float | None:
        """Relative to the measured figure; None where the tool failed."""
        if self.predicted_bytes is None:
            return None
        return self.predicted_bytes / self.measured_bytes - 1


class Kept:
    """Answers in a file, one JSON object a line; in memory alone where `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[tuple[str, str], Answer] = {}
        if path is not None and path.is_file():
            for line in path.read_text().splitlines():
                answer = Answer(**json.loads(line))
                self.known[answer.row, answer.tool] = answer

    def add(self, answer: Answer) -> None:
        """Remember one more."""
        self.known[answer.row, answer.tool] = answer
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(answer)) + "\n")


def answers(pattern: str, tools: list[str], kept: Kept) -> list[Answer]:
    """Every tool on every row whose id matches `pattern` and that the tools can be asked about."""
    from measured import progress
    from measured.rows import read_rows
    from peers.subject import subject_of

    out = []
    wanted = re.compile(pattern)
    for row in read_rows():
        subject = subject_of(row) if wanted.search(row.id) else None
        if subject is None:
            continue
        for tool in tools:
            if (row.id, tool) not in kept.known:
                progress.show(f"{row.id[:46]} {tool}")
                kept.add(_ours(row) if tool == OURS else _theirs(tool, subject))
            out.append(kept.known[row.id, tool])
    progress.show("")
    return out


def _ours(row: object) -> Answer:
    from measured.case import case_of
    from measured.rows import Row
    from measured.runner import result_of

    assert isinstance(row, Row)
    start = time.process_time()
    result = result_of(case_of(row))
    return Answer(
        row=row.id,
        tool=OURS,
        predicted_bytes=result.likely_bytes,
        measured_bytes=row.measured_bytes,
        seconds=time.process_time() - start,
        text=result.remark if result.likely_bytes is None else "",
    )


def _theirs(tool: str, subject: object) -> Answer:
    from peers.subject import Subject
    from peers.tools import TOOLS

    assert isinstance(subject, Subject)
    start = time.process_time()
    predicted: int | None = None
    text = ""
    try:
        predicted = TOOLS[tool](subject)
    except Exception as error:  # a tool that fails on a row is a finding, not the end
        first = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {first[0] if first else ''}"[:200]
    return Answer(
        row=subject.row.id,
        tool=tool,
        predicted_bytes=predicted,
        measured_bytes=subject.row.measured_bytes,
        seconds=time.process_time() - start,
        text=text,
    )


def report(found: list[Answer]) -> str:
    """The table of errors by row, then the medians."""
    tools = list(dict.fromkeys(answer.tool for answer in found))
    out = [f"{'row':<52}{'measured':>10}  " + "".join(f"{tool[:18]:>22}" for tool in tools)]
    for row in dict.fromkeys(answer.row for answer in found):
        members = {answer.tool: answer for answer in found if answer.row == row}
        first = next(iter(members.values()))
        cells = "".join(f"{_cell(members[tool]):>22}" for tool in tools)
        out.append(f"{row[:51]:<52}{first.measured_bytes / MIB:>10.0f}  {cells}")
    out.append("")
    for tool in tools:
        errors = [abs(a.error) for a in found if a.tool == tool and a.error is not None]
        seconds = [a.seconds for a in found if a.tool == tool and a.error is not None]
        failed = sum(a.tool == tool and a.error is None for a in found)
        line = f"{tool:<28}"
        if errors:
            line += (
                f"median error {100 * median(errors):>6.1f} %, worst {100 * max(errors):>6.1f} %, "
                f"{median(seconds):>6.2f} s a row (median), {len(errors)} rows"
            )
        out.append(line + (f", {failed} failed" if failed else ""))
    out += [f"{a.tool} failed on {a.row}: {a.text}" for a in found if a.error is None]
    return "\n".join(out)


def _cell(answer: Answer) -> str:
    if answer.error is None:
        return "failed"
    return f"{100 * answer.error:+.1f} % {answer.seconds:.1f} s"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--filter", default="", metavar="REGEX", help="only rows whose id matches")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--tool", action="append", metavar="NAME", help="only this tool; repeatable"
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="go on from FILE, and add to it")
    options = parser.parse_args(arguments)
    mend_torchvision()
    import measured.cases
    from peers.tools import TOOLS

    assert measured.cases  # its import registers the workloads
    tools = options.tool or [*TOOLS, OURS]
    unknown = [tool for tool in tools if tool not in TOOLS and tool != OURS]
    if unknown:
        print(f"no tool {unknown[0]!r}; there are {', '.join([*TOOLS, OURS])}", file=sys.stderr)
        return 2
    found = answers(options.filter, tools, Kept(options.keep))
    if not found:
        print(
            f"no row that the tools can be asked about matches {options.filter!r}", file=sys.stderr
        )
        return 2
    if options.json:
        print(json.dumps([{**asdict(a), "error": a.error} for a in found], indent=1))
    else:
        print(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
