"""Running a case on the virtual GPU, and the figure taken from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from measured import cases
from measured.case import (
    BATCH,
    CATALOGUE,
    GROWTH,
    LOADED,
    MODEL,
    NO_CONTEXT,
    STATED,
    Case,
    Unbuilt,
    case_of,
)
from measured.meter import Meter
from measured.rows import MIB, read_rows
from measured.runner import context_of, result_of, run

from ebbtide.gpus import context_bytes, find
from ebbtide.units import Range
from ebbtide.workloads.torchvision_mend import mend_torchvision

mend_torchvision()
assert cases
BY_ID = {row.id: row for row in read_rows()}


def case(**changes: Any) -> Case:
    base = Case(
        row=BY_ID["snap-sil-attn-alloc"],
        group="eager",
        run=hold_ten_mebibytes,
        gpu="rtx-3060",
        torch="2.6.0",
    )
    return replace(base, **changes)


def hold_ten_mebibytes(device: torch.device, meter: Meter) -> None:
    x = torch.empty(10 * MIB // 4, device=device)
    meter.note("held", meter.allocated())
    del x
    meter.note("after", meter.allocated())


def with_kind(kind: str) -> Any:
    return replace(BY_ID["snap-sil-attn-alloc"], kind=kind)


def test_peaks_and_notes() -> None:
    figures = run(case())
    assert figures.allocated_peak == 10 * MIB
    assert figures.notes == {"held": 10 * MIB, "after": 0}
    assert figures.reserved == Range.exact(10 * MIB)


def test_the_figure_follows_the_kind_and_the_moment() -> None:
    assert result_of(case()).likely_bytes == 10 * MIB
    assert result_of(case(moment="after")).likely_bytes == 0
    assert result_of(case(moment="after")).peak_bytes == 10 * MIB
    assert result_of(case(row=with_kind("reserved"))).likely_bytes == 10 * MIB


def test_a_process_has_its_context_too() -> None:
    whole = context_bytes(find("rtx-3060"), (2, 6))
    found = result_of(case(row=with_kind("nvidia-smi"), context=CATALOGUE))
    assert found.likely_bytes == 10 * MIB + whole.likely
    assert found.low_bytes == 10 * MIB + whole.low
    assert found.high_bytes == 10 * MIB + whole.high


def test_growth_is_what_comes_after_the_bare_context() -> None:
    whole = context_bytes(find("rtx-3060"), (2, 6))
    grown = context_of(case(context=GROWTH))
    assert grown == Range(0, (whole.likely - whole.low) // 2, whole.high - whole.low)
    loaded = context_of(case(context=LOADED))
    assert loaded == Range(0, 0, whole.likely - whole.low)
    assert context_of(case(context=NO_CONTEXT)) == Range.exact(0)


def test_a_stated_context_is_the_rows_own_less_its_tensor() -> None:
    bert = case_of(BY_ID["hf-bertlarge-0"])
    assert isinstance(bert, Case)
    assert bert.context == STATED
    assert context_of(bert) == Range.exact(1341 * MIB)


def test_draws_are_averaged_and_span_the_range() -> None:
    def hold(mebibytes: int) -> Any:
        def workload(device: torch.device, meter: Meter) -> None:
            torch.empty(mebibytes * MIB // 4, device=device)

        return workload

    drawn = case(draws=((hold(20), 3), (hold(40), 1)), row=with_kind("reserved"))
    assert run(drawn).reserved == Range(20 * MIB, 25 * MIB, 40 * MIB)


def test_the_peak_can_be_forgotten() -> None:
    def workload(device: torch.device, meter: Meter) -> None:
        torch.empty(30 * MIB // 4, device=device)
        meter.reset_peak()
        torch.empty(10 * MIB // 4, device=device)
        assert meter.peak() == 10 * MIB

    figures = run(case(run=workload))
    assert figures.allocated_peak == 10 * MIB
    assert figures.reserved.likely == 30 * MIB


def test_a_workload_that_fails_is_a_line_of_the_table() -> None:
    def workload(device: torch.device, meter: Meter) -> None:
        raise RuntimeError("no such layer\nsecond line")

    found = result_of(case(run=workload))
    assert found.likely_bytes is None
    assert found.remark == "failed: RuntimeError: no such layer"
    # And the next one runs.
    assert result_of(case()).likely_bytes == 10 * MIB


def test_a_row_that_is_not_rebuilt_keeps_its_reason() -> None:
    unbuilt = Unbuilt(row=BY_ID["dstune-97712-113"], group="reports", reason="nobody knows")
    found = result_of(unbuilt)
    assert found.likely_bytes is None
    assert found.remark == "not rebuilt: nobody knows"


def test_a_gpu_that_is_no_cuda_device_is_refused() -> None:
    with pytest.raises(ValueError, match="no CUDA device"):
        run(case(gpu="mi300x"))


@pytest.mark.parametrize(
    ("row_id", "within"),
    [
        ("snap-sil-attn-alloc", 0.0001),
        ("snap-sil-attn-reser", 0.0001),
        ("cs336-attn-16-4096", 0.0001),
        ("cs336-attn-64-4096", 0.0001),
        ("nbv-144-100", 0.0001),
        ("hf-bertlarge-load", 0.0001),
    ],
)
def test_what_was_measured(row_id: str, within: float) -> None:
    """Rows that take a second each; `make accuracy` has them all."""
    found = result_of(case_of(BY_ID[row_id]))
    assert abs(found.error) <= within


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alloc", "reser"])
def test_a_recorded_inference_is_met_to_the_byte(kind: str) -> None:
    found = result_of(case_of(BY_ID[f"snap-sil-fwd-fp32-{kind}"]))
    assert abs(found.error) < 0.0002


def test_a_late_first_sample_takes_the_model_away() -> None:
    def run(device: torch.device, meter: Meter) -> None:
        model = torch.empty(30 * MIB, dtype=torch.uint8, device=device)
        meter.note(MODEL, meter.reserved())
        batch = torch.empty(12 * MIB, dtype=torch.uint8, device=device)
        meter.note(BATCH, meter.reserved())
        more = torch.empty(50 * MIB, dtype=torch.uint8, device=device)
        del model, batch, more

    made = case(row=with_kind("nvidia-smi"), context=LOADED, run=run)
    found = result_of(made)
    assert found.likely_bytes == 62 * MIB
    assert found.low_bytes == 50 * MIB
    assert found.high_bytes == 62 * MIB + context_of(made).high
