"""The other tools on a model small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measured import cases
from measured.rows import read_rows
from peers.subject import Subject, call, subject_of
from peers.tools import TOOLS, accelerate, fake_counting, mem_tracker, without_values
from torch import nn

from ebbtide.workloads.torchvision_mend import mend_torchvision

mend_torchvision()
assert cases
ROWS = {row.id: row for row in read_rows()}
WEIGHTS = 4 * (64 * 64 + 64)


def subject(optimizer: str | None = "SGD", precision: str = "float32") -> Subject:
    return Subject(
        row=ROWS["snap-sil-attn-alloc"],
        build=lambda: nn.Linear(64, 64),
        batch=lambda: {"input": torch.randn(8, 64), "target": torch.randint(0, 64, (8,))},
        loss=lambda m, b: nn.functional.cross_entropy(call(m, b), b["target"]),
        optimizer=optimizer,
        precision=precision,
    )


def test_the_rows_that_the_tools_are_asked_about() -> None:
    asked = [row for row in ROWS.values() if subject_of(row) is not None]
    assert len(asked) == 33
    groups = {row.id.split("-")[0] for row in asked}
    assert groups == {"xmem", "hf", "snap", "qwen3"}


def test_inference_has_no_optimizer() -> None:
    for row_id, optimizer in (
        ("snap-wed-128-infer-alloc", None),
        ("snap-wed-128-train-alloc", "AdamW"),
        ("qwen3-Qwen3-8B-BF16-in1", None),
        ("hf-bertlarge-5", "Adafactor"),
        ("xmem-VGG16_Adagrad_480_1_8d25", "Adagrad"),
    ):
        found = subject_of(ROWS[row_id])
        assert found is not None
        assert found.optimizer == optimizer


def test_accelerate_takes_four_times_the_weights() -> None:
    assert accelerate(subject()) == 4 * WEIGHTS
    assert accelerate(subject(optimizer=None)) == WEIGHTS


def test_torchinfo_adds_input_outputs_and_weights() -> None:
    """It counts each output twice, for its gradient, in evaluation too."""
    pytest.importorskip("torchinfo")
    found = TOOLS["torchinfo"](subject(optimizer=None))
    one = 8 * 64 * 4
    assert found == pytest.approx(WEIGHTS + one + 2 * one, rel=0.01)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", None])
def test_trackers_see_weights_gradients_and_state(optimizer: str | None) -> None:
    copies = {"SGD": 2, "AdamW": 4, None: 1}[optimizer]
    for tool in (mem_tracker, fake_counting):
        assert tool(subject(optimizer=optimizer)) >= copies * WEIGHTS


def test_more_state_is_more_memory() -> None:
    assert fake_counting(subject("AdamW")) > fake_counting(subject("SGD"))


def test_initial_values_can_be_left_out() -> None:
    before = nn.init.zeros_
    with without_values():
        layer = nn.Linear(4, 4)
        marked = torch.full((3,), 7.0)
        assert nn.init.zeros_(marked) is marked
        assert marked.eq(7).all()
    assert nn.init.zeros_ is before
    assert layer.weight.shape == (4, 4)


def test_the_report_has_every_tool_and_the_failures() -> None:
    from predict import Answer, report

    answers = [
        Answer(row="a", tool="x", predicted_bytes=110, measured_bytes=100, seconds=1.0),
        Answer(row="b", tool="x", predicted_bytes=80, measured_bytes=100, seconds=3.0),
        Answer(row="a", tool="y", predicted_bytes=None, measured_bytes=100, seconds=0, text="Boom"),
    ]
    answers.append(replace(answers[0], tool="y", row="b"))
    text = report(answers)
    assert "median error   15.0 %, worst   20.0 %" in text
    assert "2.00 s a row" in text
    assert "y failed on a: Boom" in text
    assert "1 failed" in text


def test_a_tool_that_raises_is_a_finding() -> None:
    import predict

    def fail(_: Subject) -> int:
        raise KeyError("lost")

    TOOLS["broken"] = fail
    try:
        answer = predict._theirs("broken", subject())
    finally:
        del TOOLS["broken"]
    assert answer.error is None
    assert "KeyError" in answer.text


def test_a_stopped_run_goes_on_from_what_was_kept(tmp_path: Path) -> None:
    import predict

    kept = tmp_path / "kept.jsonl"
    asked: list[str] = []

    def count(found: Subject) -> int:
        asked.append(found.row.id)
        return found.row.measured_bytes

    TOOLS["counted"] = count
    try:
        pattern = "snap-wed-(128|512)-infer"
        first = predict.answers(pattern, ["counted"], predict.Kept(kept))
        again = predict.answers("snap-wed", ["counted"], predict.Kept(kept))
    finally:
        del TOOLS["counted"]
    assert len(asked) == len(set(asked)) == len(again) > len(first) == 2
    assert [a for a in again if a in first] == first
    assert len(kept.read_text().splitlines()) == len(again)


def test_commands_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    import accuracy
    import predict

    assert predict.main(["--tool", "crystal ball"]) == 2
    assert predict.main(["--filter", "no such row"]) == 2
    assert accuracy.main(["--filter", "no such row"]) == 2
    assert "crystal ball" in capsys.readouterr().err


def test_the_command_judges_the_rows_it_ran(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import json

    import accuracy

    assert accuracy.main(["--filter", "cs336-attn-16-1024"]) == 0
    assert "+0.00%" in capsys.readouterr().out
    assert accuracy.main(["--filter", "cs336-attn-16-1024|dstune", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["id"] for row in document["rows"]} == {"cs336-attn-16-1024", "dstune-97712-113"}
    assert all(bound["holds"] for bound in document["bounds"])
