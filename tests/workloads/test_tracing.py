"""Which traces are made, in which order, and what happens where one cannot be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import training

from ebbtide.errors import ScriptError, TargetError, UsageError
from ebbtide.trace.file import load_trace, save_trace
from ebbtide.trace.model import Trace
from ebbtide.workloads.batches import PLACEHOLDER
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.request import Request
from ebbtide.workloads.tracing import Job, how_to_pass, other_seqs, trace_all

ANSWER = training(4, layers=1, steps=1)


class Fake:
    """Takes jobs in place of a workload; `meta` is what its traces say of themselves."""

    def __init__(self, **meta: Any) -> None:
        self.meta = {"target": "train.py", "batch": None, "loader_batch": None, **meta}
        self.jobs: list[Job] = []
        self.sent: list[dict[str, Any]] = []
        self.failing: dict[str, Exception] = {}
        self.ops = len(ANSWER.ops.name)
        self.writes = True

    def trace(self, job: Job, path: Path) -> None:
        self.jobs.append(job)
        if job.axis in self.failing:
            raise self.failing[job.axis]
        size = job.batch or job.loader_batch or self.meta["batch"]
        made = self.made(batch=size)
        job.check(made)
        if self.writes:
            save_trace(made, path)

    def made(self, **meta: Any) -> Trace:
        times = -(-self.ops // len(ANSWER.ops.name))
        ops = replace(
            ANSWER.ops,
            **{
                name: getattr(ANSWER.ops, name).repeat(times)
                for name in ANSWER.ops.__dataclass_fields__
            },
        )
        return replace(ANSWER, ops=ops, meta={**self.meta, **meta})

    def send(self, event: str, **data: Any) -> None:
        self.sent.append({"event": event, **data})

    def run(self, tmp_path: Path, **request: Any) -> list[Job]:
        asked = {"kind": "architecture", "target": "train.py", "gpus": ("l4",), **request}
        trace_all(Request(folder=str(tmp_path), **asked), self.send, self.trace)
        return self.jobs

    @property
    def missing(self) -> dict[str, str]:
        return {each["axis"]: each["text"] for each in self.sent if each["event"] == "no-curve"}


def test_one_trace_without_a_curve(tmp_path: Path) -> None:
    jobs = Fake(batch=8).run(tmp_path, batch=8, curve=False)
    assert jobs == [Job(gpu="l4", batch=8)]


def test_a_curve_takes_two_more(tmp_path: Path) -> None:
    fake = Fake(batch=8)
    jobs = fake.run(tmp_path, batch=8)
    assert [(job.axis, job.batch, job.quiet) for job in jobs] == [
        ("answer", 8, False),
        ("batch", 16, True),
        ("batch", 32, True),
    ]
    traced = [each for each in fake.sent if each["event"] == "trace"]
    assert [load_trace(each["path"]).meta["batch"] for each in traced] == [8, 16, 32]
    assert [each["axis"] for each in traced] == ["answer", "batch", "batch"]
    assert all(each["seconds"] >= 0 for each in traced)


def test_the_workloads_own_batch_begins_the_curve(tmp_path: Path) -> None:
    assert [job.batch for job in Fake(batch=3).run(tmp_path)] == [None, 6, 12]


def test_a_long_trace_is_not_checked_by_a_third(tmp_path: Path) -> None:
    fake = Fake(batch=8)
    fake.ops = 10_100
    assert [job.batch for job in fake.run(tmp_path, batch=8)] == [8, 16]


def test_batch_one_has_two_others_however_long(tmp_path: Path) -> None:
    fake = Fake(batch=1)
    fake.ops = 10_100
    assert [job.batch for job in fake.run(tmp_path, batch=1)] == [1, 2, 4]


def test_each_gpu_is_answered_and_only_the_first_is_loud(tmp_path: Path) -> None:
    jobs = Fake(batch=8).run(tmp_path, gpus=("l4", "t4"), batch=8)
    assert [job.gpu for job in jobs] == ["l4"] * 3 + ["t4"] * 3
    assert [job.quiet for job in jobs] == [False] + [True] * 5


def test_a_data_set_of_few_batches(tmp_path: Path) -> None:
    fake = Fake(batch=8, batches=4, loader_batch=8)  # 32 samples: three batches of 10
    jobs = fake.run(tmp_path, kind="script")
    assert [(job.loader_batch, job.loader_batch_now) for job in jobs] == [
        (None, None),
        (4, 8),
        (2, 8),
    ]


def test_a_script_with_its_batch_among_the_arguments(tmp_path: Path) -> None:
    args = ("--n", PLACEHOLDER)
    jobs = Fake(batch=8).run(tmp_path, kind="script", batch=8, args=args)
    assert [job.batch for job in jobs] == [8, 16, 32]
    assert all(job.loader_batch is None for job in jobs)
    assert [job.arguments(args) for job in jobs][1] == ["--n", "16"]


def test_a_script_whose_loaders_are_given_a_size(tmp_path: Path) -> None:
    jobs = Fake(batch=8, loader_batch=5).run(tmp_path, kind="script", batch=8)
    assert [(job.batch, job.loader_batch, job.loader_batch_now) for job in jobs] == [
        (None, 8, None),
        (None, 16, 5),
        (None, 32, 5),
    ]


def test_no_batch_size_says_how_to_pass_one(tmp_path: Path) -> None:
    fake = Fake()
    assert len(fake.run(tmp_path, kind="script", target="a/train.py")) == 1
    assert "no batch size was found" in fake.missing["batch"]
    assert "train.py" in fake.missing["batch"]
    assert f"--batch 8 -- --size {PLACEHOLDER}" in fake.missing["batch"]


def test_a_script_that_ran_out_of_memory_has_no_curve(tmp_path: Path) -> None:
    fake = Fake(batch=8, caught_out_of_memory=2)
    assert len(fake.run(tmp_path, kind="script")) == 1
    assert "depends on where memory ends" in fake.missing["batch"]


@pytest.mark.parametrize(
    ("error", "text"),
    [(TargetError("too large"), "too large"), (ValueError("odd"), "ValueError: odd")],
)
def test_the_answer_stands_without_its_curve(tmp_path: Path, error: Exception, text: str) -> None:
    fake = Fake(batch=8)
    fake.failing = {"batch": error}
    fake.run(tmp_path, batch=8)
    assert fake.missing == {"batch": text}
    assert sum(each["event"] == "trace" for each in fake.sent) == 1


def test_the_answer_itself_must_be_had(tmp_path: Path) -> None:
    fake = Fake(batch=8)
    fake.failing = {"answer": TargetError("no such model")}
    with pytest.raises(TargetError, match="no such model"):
        fake.run(tmp_path, batch=8)


def test_a_process_that_ended_before_it_wrote(tmp_path: Path) -> None:
    fake = Fake(batch=8)
    fake.writes = False
    with pytest.raises(ScriptError, match="before its trace could be written"):
        fake.run(tmp_path, batch=8)


def test_lengths_are_traced_where_one_is_asked_for(tmp_path: Path) -> None:
    fake = Fake(batch=8, seq=128, longest_seq=1024)
    jobs = fake.run(tmp_path, batch=8, options=WorkloadOptions(seq=128))
    assert [(job.axis, job.batch, job.seq) for job in jobs] == [
        ("answer", 8, None),
        ("batch", 16, None),
        ("batch", 32, None),
        ("seq", 8, 64),
        ("seq", 8, 256),
    ]


def test_lengths_are_not_traced_unasked(tmp_path: Path) -> None:
    jobs = Fake(batch=8, seq=128, longest_seq=1024).run(tmp_path, batch=8)
    assert all(job.axis != "seq" for job in jobs)


def test_a_length_that_fails_leaves_the_batches(tmp_path: Path) -> None:
    fake = Fake(batch=8, seq=128, longest_seq=1024)
    fake.failing = {"seq": ValueError("too short")}
    fake.run(tmp_path, batch=8, options=WorkloadOptions(seq=128))
    assert fake.missing == {"seq": "ValueError: too short"}
    assert sum(each["event"] == "trace" for each in fake.sent) == 3


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_other_lengths_are_within_what_the_model_has(seq: int, longest: int) -> None:
    found = other_seqs(seq, longest)
    assert len(found) in (0, 2)
    assert seq not in found
    assert all(16 <= each <= max(longest, seq) for each in found)
    assert list(found) == sorted(found)


def test_progress_is_sent_before_each_trace(tmp_path: Path) -> None:
    fake = Fake(batch=8)
    fake.run(tmp_path, batch=8)
    assert [each["event"] for each in fake.sent] == ["phase", "trace"] * 3
    assert [each["batch"] for each in fake.sent if each["event"] == "phase"] == [8, 16, 32]


def meta_of(job: Job, **meta: Any) -> dict[str, Any]:
    trace = Fake(**meta).made()
    job.check(trace)
    return trace.meta


def test_a_script_at_the_batch_of_its_arguments() -> None:
    assert meta_of(Job(gpu="l4", batch=6), batch=5)["batch"] == 6
    assert meta_of(Job(gpu="l4"), batch=5)["batch"] == 5


def test_loaders_that_took_the_size() -> None:
    assert meta_of(Job(gpu="l4", loader_batch=6), batch=6)["batch"] == 6


@pytest.mark.parametrize(
    ("batch", "text"),
    [(5, "trains at batch 5 although its data loaders were given 6"), (None, "no data loader")],
)
@pytest.mark.parametrize(("axis", "kind"), [("answer", UsageError), ("batch", ScriptError)])
def test_loaders_that_did_not(
    batch: int | None, text: str, axis: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=text) as caught:
        meta_of(Job(gpu="l4", axis=axis, loader_batch=6), batch=batch)
    assert how_to_pass("train.py") in str(caught.value)
