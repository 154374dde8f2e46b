"""A plan file that was edited by hand: every mistake is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide import Plan, UsageError

PLAN: dict[str, Any] = {
    "ebbtide_plan": 1,
    "budget_bytes": 100,
    "fits": True,
    "predicted_peak_bytes": 90,
    "plain_peak_bytes": 120,
    "predicted_step_s": 0.5,
    "host_bytes": 0,
    "techniques": [
        {
            "name": "recompute",
            "settings": {
                "operations": ["aten.t.default", "aten.addmm.default", "aten.tanh.default"],
                "keep": [
                    {"operation": 1, "output": 0, "name": "aten.addmm.default", "bytes": 8},
                    {"operation": 2, "output": 0},
                ],
            },
            "bytes_saved_at_peak": 30,
            "seconds": 0.1,
            "reason": "because",
        }
    ],
    "front": [{"peak_bytes": 90, "step_s": 0.5}],
    "optimality_gap": None,
}


def load(data: Any, folder: Path) -> Plan:
    path = folder / "plan.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return Plan.load(path)


def test_a_plan_is_read(tmp_path: Path) -> None:
    plan = load(PLAN, tmp_path)
    assert (plan.budget_bytes, plan.predicted_step_s, plan.front[0].peak_bytes) == (100, 0.5, 90)
    assert plan.decision.recompute is not None
    assert plan.decision.recompute.kept == {(1, 0), (2, 0)}
    assert plan.decision.recompute.operations[2] == "aten.tanh.default"
    assert not plan.decision.expandable_segments
    plan.save(tmp_path / "again.json")
    assert Plan.load(tmp_path / "again.json") == plan


def test_a_line_may_be_taken_out(tmp_path: Path) -> None:
    data = copy.deepcopy(PLAN)
    del data["techniques"][0]["settings"]["keep"][0]
    plan = load(data, tmp_path)
    assert plan.decision.recompute is not None
    assert plan.decision.recompute.kept == {(2, 0)}


def _keep(data: Any) -> Any:
    return data["techniques"][0]["settings"]["keep"]


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no mark": (lambda d: d.pop("ebbtide_plan"), "ebbtide_plan"),
    "another format": (lambda d: d.update(ebbtide_plan=9), "format 9; this version reads 1"),
    "no budget": (lambda d: d.pop("budget_bytes"), "has no field 'budget_bytes'"),
    "a text for a number": (lambda d: d.update(budget_bytes="8GiB"), "budget_bytes: expected a"),
    "a negative number": (lambda d: d.update(host_bytes=-1), "host_bytes: expected a number"),
    "no techniques": (lambda d: d.pop("techniques"), "has no field 'techniques'"),
    "an unknown technique": (
        lambda d: d["techniques"][0].update(name="magic"),
        "technique 'magic': known are recompute",
    ),
    "an operation beyond": (
        lambda d: _keep(d)[0].update(operation=3),
        "operation 3 is none of the 3",
    ),
    "an operation of another name": (
        lambda d: _keep(d)[0].update(operation=2),
        "operation 2 is aten.tanh.default, not aten.addmm.default",
    ),
    "an output that is none": (lambda d: _keep(d)[1].update(output=-1), "output -1 of operation 2"),
    "operations that are none": (
        lambda d: d["techniques"][0]["settings"].update(operations="all"),
        "expected a list of names",
    ),
    "no reason": (lambda d: d["techniques"][0].pop("reason"), "has no field 'reason'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    change, text = WRONG[name]
    data = copy.deepcopy(PLAN)
    change(data)
    with pytest.raises(UsageError) as raised:
        load(data, tmp_path)
    assert text in str(raised.value)
    assert "plan.json" in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"plan"', "null"])
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plan\.json"):
        load(text, tmp_path)


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Plan.load(tmp_path / "nix.json")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        Plan.load(tmp_path)
    plan = load(PLAN, tmp_path)
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        plan.save(tmp_path / "nix" / "plan.json")
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]
