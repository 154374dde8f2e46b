"""Every row has a workload or a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from measured import cases
from measured.case import CATALOGUE, GROWTH, LOADED, PEAK, STATED, Case, Unbuilt, case_of
from measured.rows import read_rows

from ebbtide.workloads.torchvision_mend import mend_torchvision

mend_torchvision()
assert cases
ROWS = read_rows()


@pytest.fixture(scope="module")
def made() -> dict[str, Case | Unbuilt]:
    return {row.id: case_of(row) for row in ROWS}


def test_groups(made: dict[str, Case | Unbuilt]) -> None:
    built = Counter(case.group for case in made.values() if isinstance(case, Case))
    assert built["eager"] == 15
    assert built["xmem"] == 12
    assert built["bert"] == 6
    assert built["qwen3 dense BF16"] == 11
    assert built["schedtune"] == 129


def test_what_is_not_rebuilt_says_why(made: dict[str, Case | Unbuilt]) -> None:
    unbuilt = [case for case in made.values() if isinstance(case, Unbuilt)]
    assert all(len(case.reason) > 20 for case in unbuilt)
    assert not any("no workload has been written" in case.reason for case in unbuilt)
    assert not {case.group for case in unbuilt} & {"eager", "xmem", "bert", "qwen3 dense BF16"}


def test_a_row_of_a_new_source_is_listed_not_dropped() -> None:
    found = case_of(replace(ROWS[0], id="somebody-else-1"))
    assert isinstance(found, Unbuilt)
    assert "no workload" in found.reason


def test_the_moment_follows_the_row(made: dict[str, Case | Unbuilt]) -> None:
    def moment(row_id: str) -> str:
        case = made[row_id]
        assert isinstance(case, Case)
        return case.moment

    assert moment("snap-wed-128-train-alloc") == PEAK
    assert moment("cs336-attn-16-4096") == "before backward"
    assert moment("qwen3-Qwen3-8B-BF16-in1") == "end of decoding"
    assert moment("nbv-144-100") == "after forward"


def test_only_process_figures_have_a_context(made: dict[str, Case | Unbuilt]) -> None:
    for case in made.values():
        if isinstance(case, Case):
            process = case.row.kind in ("nvidia-smi", "unknown")
            assert process == (case.context in (CATALOGUE, GROWTH, LOADED, STATED)), case.row.id


def test_what_the_row_leaves_open_is_said(made: dict[str, Case | Unbuilt]) -> None:
    for case in made.values():
        if isinstance(case, Case) and case.group in ("schedtune", "peft", "litgpt"):
            assert case.assumption
