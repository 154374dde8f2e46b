"""Errors, ranges and the bounds they are held to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured.causes import cause
from measured.gates import Gate, gates
from measured.result import Result
from measured.rivals import read_rivals
from measured.table import gate_lines, lines, rival_lines

NONE: Mapping[str, Mapping[str, float]] = {}


def result(
    error: float, *, group: str = "eager", kind: str = "allocated", name: str = "a", spread: int = 0
) -> Result:
    likely = round(1_000_000 * (1 + error))
    return Result(
        id=name,
        group=group,
        kind=kind,
        measured_bytes=1_000_000,
        low_bytes=likely - spread,
        likely_bytes=likely,
        high_bytes=likely + spread,
    )


def failed(group: str = "eager", kind: str = "allocated") -> Result:
    return Result(id="lost", group=group, kind=kind, measured_bytes=1, remark="failed: no")


def holds(found: list[Gate], text: str) -> bool:
    return next(gate.holds for gate in found if text in gate.text)


@given(st.floats(-0.9, 9.0))
def test_error_is_relative_to_the_measured_figure(error: float) -> None:
    assert result(error).error == pytest.approx(error, abs=1e-6)


def test_without_a_prediction_there_is_no_error() -> None:
    with pytest.raises(ValueError, match="lost was not predicted"):
        _ = failed().error
    assert failed().to_json()["error"] is None
    assert not failed().inside
    assert failed().width == 0.0


@given(st.floats(-0.3, 0.3), st.integers(0, 200_000))
def test_inside_means_within_the_spread(error: float, spread: int) -> None:
    made = result(error, spread=spread)
    assert made.inside == (abs((made.likely_bytes or 0) - 1_000_000) <= spread)
    assert made.width == pytest.approx(2 * spread / (made.likely_bytes or 1))


def test_json_has_the_error() -> None:
    assert result(0.25).to_json()["error"] == pytest.approx(0.25)


@pytest.mark.parametrize(("error", "good"), [(0.004, True), (0.006, False)])
def test_the_median_of_allocated_is_bounded(error: float, good: bool) -> None:
    found = gates([result(0.0), result(error), result(error)], NONE)
    assert holds(found, "allocated: median") == good


def test_the_median_of_reserved_has_its_own_bound() -> None:
    found = gates([result(0.009, kind="reserved")], NONE)
    assert holds(found, "reserved: median")
    assert not any("allocated" in gate.text for gate in found)


def test_one_bad_row_breaks_the_worst_bound_alone() -> None:
    found = gates([result(0.0), result(0.0), result(-0.021)], NONE)
    assert holds(found, "allocated: median")
    assert not holds(found, "worst")


def test_a_row_that_failed_fails_its_bound() -> None:
    found = gates([result(0.0), failed()], NONE)
    assert not any(gate.holds for gate in found)
    assert "lost" in found[0].found


def test_groups_without_rows_have_no_bound() -> None:
    assert gates([], NONE) == []
    assert gates([result(9.0, group="schedtune")], NONE) == []


def xmem(errors: list[float], spread: int = 100_000) -> list[Result]:
    return [
        result(error, group="xmem", kind="nvidia-smi", name=f"xmem-{i}", spread=spread)
        for i, error in enumerate(errors)
    ]


def test_rivals_are_compared_on_the_rows_that_they_cover() -> None:
    ours = xmem([0.05, 0.05, 0.0])
    rivals = {"good": {"xmem-0": 0.04, "xmem-1": -0.04}, "bad": {"xmem-2": 0.5}}
    found = gates(ours, rivals)
    assert not holds(found, "below good's on the 2 rows")
    assert holds(found, "below bad's on the 1 rows")


@pytest.mark.parametrize(("above", "good"), [(3, True), (4, False)])
def test_three_rows_may_exceed_eight_percent(above: int, good: bool) -> None:
    found = gates(xmem([0.09] * above + [0.0] * (12 - above)), NONE)
    assert holds(found, "above 8 %") == good


def test_no_row_may_exceed_thirteen_percent() -> None:
    assert not holds(gates(xmem([0.131]), NONE), "above 13 %")
    assert holds(gates(xmem([0.129]), NONE), "above 13 %")


@pytest.mark.parametrize(("outside", "good"), [(2, True), (3, False)])
def test_ten_of_twelve_must_lie_inside(outside: int, good: bool) -> None:
    found = gates(xmem([0.12] * outside + [0.05] * (12 - outside)), NONE)
    assert holds(found, "inside the range") == good


@pytest.mark.parametrize(("spread", "good"), [(170_000, True), (180_000, False)])
def test_the_range_may_not_be_wide(spread: int, good: bool) -> None:
    assert holds(gates(xmem([0.0], spread), NONE), "no wider than 35 %") == good


def test_what_the_estimators_said() -> None:
    """The medians that the issue quotes: xMem 3.3 % over the twelve rows."""
    rivals = read_rivals()
    assert set(rivals) == {"xMem", "DNNMem", "SchedTune", "LLMem"}
    assert len(rivals["xMem"]) == 12
    assert len(rivals["LLMem"]) == 2
    assert "3.33 % median over 12 rows" in next(iter(rival_lines(rivals)))


def test_estimators_name_rows_that_exist() -> None:
    from measured.rows import read_rows

    ids = {row.id for row in read_rows()}
    for errors in read_rivals().values():
        assert errors.keys() <= ids


def test_the_table_has_a_line_a_row() -> None:
    made = [result(0.1, name="one"), failed(), result(-0.2, group="bert", name="x" * 80)]
    text = "\n".join(lines(made))
    assert "+10.00%" in text
    assert "not predicted" in text
    assert "failed: no" in text
    assert "-20.00%" in text
    assert "x" * 54 + "..." in text
    assert "1 rows, median 10.00 %, worst 10.00 %, 1 not predicted" in text


def test_bounds_are_marked() -> None:
    shown = list(
        gate_lines([Gate(text="a", found="1", holds=True), Gate(text="b", found="2", holds=False)])
    )
    assert shown[0].split() == ["ok", "a:", "1"]
    assert shown[1].split() == ["FAIL", "b:", "2"]


def test_a_large_error_has_its_cause() -> None:
    off = result(0.3, group="qwen3 packed or MoE", name="qwen3-Qwen3-4B-FP8-in14336")
    assert "untied" in cause(off)
    assert cause(off) in "\n".join(lines([off]))
    assert cause(result(0.05, name="schedtune-x")) == ""
    assert cause(failed()) == ""
    assert cause(result(0.5, name="nobody")) == ""
