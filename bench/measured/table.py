"""The table that people read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from .causes import cause
from .gates import Gate
from .result import Result
from .rows import MIB

HEAD = (
    f"{'row':<58}{'kind':<12}{'measured':>10}{'low':>9}{'likely':>9}{'high':>9}{'error':>9}{'s':>7}"
)


def lines(results: Sequence[Result]) -> Iterator[str]:
    """One line a row, by group, with the remark below where there is one."""
    for group in dict.fromkeys(result.group for result in results):
        members = [result for result in results if result.group == group]
        yield f"\n{group}"
        yield HEAD
        for result in members:
            yield _line(result)
            for text in (result.remark, cause(result)):
                if text:
                    yield f"    {text}"
        yield f"  {_summary(members)}"


def gate_lines(found: Iterable[Gate]) -> Iterator[str]:
    """One line a bound."""
    for gate in found:
        yield f"  {'ok  ' if gate.holds else 'FAIL'}  {gate.text}: {gate.found}"


def rival_lines(rivals: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """The median error of each estimator, over the rows that it covers."""
    for name, errors in rivals.items():
        value = median(abs(error) for error in errors.values())
        yield f"  {name:<12}{100 * value:>7.2f} % median over {len(errors)} rows"


def _line(result: Result) -> str:
    name = result.id if len(result.id) < 57 else f"{result.id[:54]}..."
    start = f"{name:<58}{result.kind:<12}{_mib(result.measured_bytes):>10}"
    if result.likely_bytes is None:
        return f"{start}{'not predicted':>27}"
    return (
        f"{start}{_mib(result.low_bytes):>9}{_mib(result.likely_bytes):>9}"
        f"{_mib(result.high_bytes):>9}{100 * result.error:>+8.2f}%{result.seconds:>7.1f}"
    )


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value / MIB:.1f}"


def _summary(members: Sequence[Result]) -> str:
    errors = [abs(result.error) for result in members if result.likely_bytes is not None]
    missing = len(members) - len(errors)
    text = f"{len(errors)} rows"
    if errors:
        text += f", median {100 * median(errors):.2f} %, worst {100 * max(errors):.2f} %"
    return f"{text}, {missing} not predicted" if missing else text
