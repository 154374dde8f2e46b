"""Read a plan from a file, and say exactly what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from ebbtide.errors import UsageError
from ebbtide.fitting.plan import (
    ALLOCATOR,
    FORMAT,
    IMPLEMENTATION,
    IN_BACKWARD,
    MICRO_BATCHES,
    RECOMPUTE,
    Plan,
)
from ebbtide.fitting.planner import Point
from ebbtide.fitting.technique import Technique
from ebbtide.plan.decision import Implementation

_KNOWN = (RECOMPUTE, ALLOCATOR, MICRO_BATCHES, IMPLEMENTATION, IN_BACKWARD)
_IMPLEMENTATIONS = get_args(Implementation)
_NUMBERS = (
    "budget_bytes",
    "predicted_peak_bytes",
    "plain_peak_bytes",
    "predicted_step_s",
    "host_bytes",
)


def read(path: Path) -> Plan:
    """The plan in the file at `path`.

    Raises:
        UsageError: it cannot be read or is no plan; the message names the field.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The plan {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"The plan {path} is no JSON: {error}.") from error
    try:
        return _plan(data)
    except (KeyError, TypeError, ValueError) as error:
        what = f"has no field {error}" if isinstance(error, KeyError) else f"is wrong: {error}"
        raise UsageError(f"The plan {path} {what}. `ebbtide fit` writes a whole one.") from error


def _plan(data: Any) -> Plan:
    if not isinstance(data, dict) or "ebbtide_plan" not in data:
        raise ValueError("expected an object with the field 'ebbtide_plan'")
    if data["ebbtide_plan"] != FORMAT:
        raise ValueError(f"format {data['ebbtide_plan']!r}; this version reads {FORMAT}")
    numbers = {name: _number(name, data[name]) for name in _NUMBERS}
    gap = data.get("optimality_gap")
    return Plan(
        **numbers,
        fits=bool(data["fits"]),
        techniques=tuple(_technique(each) for each in data["techniques"]),
        left=tuple(_row(each) for each in data.get("left", ())),
        front=tuple(Point(each["peak_bytes"], each["step_s"]) for each in data["front"]),
        optimality_gap=None if gap is None else _number("optimality_gap", gap),
        where=str(data.get("where", "cpu")),
        model=str(data.get("model", "")),
    )


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{name}: expected a number of at least 0, got {value!r}")
    return value


def _row(data: Any) -> Technique:
    return Technique(
        name=str(data["name"]),
        settings=dict(data["settings"]),
        bytes_saved_at_peak=int(data["bytes_saved_at_peak"]),
        seconds=float(data["seconds"]),
        reason=str(data["reason"]),
    )


def _technique(data: Any) -> Technique:
    technique = _row(data)
    if technique.name not in _KNOWN:
        raise ValueError(f"technique {technique.name!r}: known are {', '.join(_KNOWN)}")
    settings = technique.settings
    if technique.name == RECOMPUTE:
        _check_recompute(settings)
    if technique.name == MICRO_BATCHES and (
        not isinstance(settings["parts"], int) or settings["parts"] < 1
    ):
        raise ValueError(f"{MICRO_BATCHES}.parts: expected at least 1, got {settings['parts']!r}")
    if technique.name == IMPLEMENTATION and settings["implementation"] not in _IMPLEMENTATIONS:
        raise ValueError(
            f"{IMPLEMENTATION}.implementation: expected {', '.join(_IMPLEMENTATIONS)}, got "
            f"{settings['implementation']!r}"
        )
    return technique


def _check_recompute(settings: dict[str, Any]) -> None:
    operations = settings["operations"]
    if not isinstance(operations, list) or not all(isinstance(x, str) for x in operations):
        raise ValueError("recompute.operations: expected a list of names of operations")
    for name in ("holds", "keeps", "lasts"):
        for row in settings.get(name, ()):
            if len(row) != 3 or not all(type(each) is int for each in row):
                raise ValueError(f"recompute.{name}: expected three integers a row, got {row!r}")
    for each in settings["keep"]:
        number, name = each["operation"], each.get("name")
        if not isinstance(number, int) or not 0 <= number < len(operations):
            raise ValueError(
                f"recompute.keep: operation {number!r} is none of the {len(operations)}"
            )
        if not isinstance(each["output"], int) or each["output"] < 0:
            raise ValueError(f"recompute.keep: output {each['output']!r} of operation {number}")
        if name is not None and name != operations[number]:
            raise ValueError(
                f"recompute.keep: operation {number} is {operations[number]}, not {name}"
            )
