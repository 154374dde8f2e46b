"""The bounds that the rows are held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from .result import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """One bound: what it says, what came out, whether it holds."""

    text: str
    found: str
    holds: bool


def gates(results: Sequence[Result], rivals: Mapping[str, Mapping[str, float]]) -> list[Gate]:
    """Every bound over the rows that `results` has; a group without rows gives no gate.

    Args:
        results: predicted rows.
        rivals: estimator to row id to its relative error.
    """
    out: list[Gate] = []
    eager = _group(results, "eager")
    out += _at_most("eager transformers, allocated: median", _kind(eager, "allocated"), median, 0.5)
    out += _at_most("eager transformers, reserved: median", _kind(eager, "reserved"), median, 1.0)
    out += _at_most("eager transformers: worst", eager, max, 2.0)
    out += _xmem(_group(results, "xmem"), rivals)
    out += _at_most("BERT-large: worst", _group(results, "bert"), max, 5.0)
    out += _at_most("dense Qwen3 BF16: median", _group(results, "qwen3 dense BF16"), median, 0.5)
    return out


def _group(results: Sequence[Result], group: str) -> list[Result]:
    return [result for result in results if result.group == group]


def _kind(results: Sequence[Result], kind: str) -> list[Result]:
    return [result for result in results if result.kind == kind]


def _at_most(
    text: str,
    results: Sequence[Result],
    judge: Callable[[list[float]], float],
    bound_percent: float,
) -> list[Gate]:
    if not results:
        return []
    failed = [result.id for result in results if result.likely_bytes is None]
    if failed:
        return [Gate(text=text, found=f"not predicted: {', '.join(failed)}", holds=False)]
    value = 100 * judge([abs(result.error) for result in results])
    return [
        Gate(
            text=f"{text} at most {bound_percent} %",
            found=f"{value:.2f} % of {len(results)} rows",
            holds=value <= bound_percent,
        )
    ]


def _xmem(results: Sequence[Result], rivals: Mapping[str, Mapping[str, float]]) -> list[Gate]:
    if not results:
        return []
    failed = [result.id for result in results if result.likely_bytes is None]
    if failed:
        return [Gate(text="xMem rows", found=f"not predicted: {', '.join(failed)}", holds=False)]
    errors = {result.id: abs(result.error) for result in results}
    out = [
        _against(name, theirs, errors)
        for name, theirs in rivals.items()
        if theirs.keys() & errors.keys()
    ]
    above = sum(error > 0.08 for error in errors.values())
    out.append(_count("xMem rows above 8 %: at most 3", above, above <= 3))
    worst = max(errors.values())
    out.append(
        Gate(text="xMem rows: none above 13 %", found=f"{100 * worst:.2f} %", holds=worst <= 0.13)
    )
    inside = sum(result.inside for result in results)
    need = -(-10 * len(results) // 12)
    out.append(
        Gate(
            text="xMem rows: the truth inside the range for 10 of 12",
            found=f"{inside} of {len(results)}",
            holds=inside >= need,
        )
    )
    width = max(result.width for result in results)
    out.append(
        Gate(
            text="xMem rows: range no wider than 35 % of the likely figure",
            found=f"{100 * width:.1f} %",
            holds=width <= 0.35,
        )
    )
    return out


def _against(name: str, theirs: Mapping[str, float], ours: Mapping[str, float]) -> Gate:
    shared = sorted(theirs.keys() & ours.keys())
    their_median = median(abs(theirs[key]) for key in shared)
    our_median = median(ours[key] for key in shared)
    return Gate(
        text=f"xMem rows: median below {name}'s on the {len(shared)} rows it covers",
        found=f"{100 * our_median:.2f} % against {100 * their_median:.2f} %",
        holds=our_median < their_median,
    )


def _count(text: str, value: int, holds: bool) -> Gate:
    return Gate(text=text, found=str(value), holds=holds)
