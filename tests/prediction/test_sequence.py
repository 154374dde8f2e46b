"""The longest sequence that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.prediction.builder import Builder
from tests.prediction.samples import device

from ebbtide.prediction.build import FIGURES
from ebbtide.prediction.replaying import Limit, replay
from ebbtide.prediction.result import Prediction
from ebbtide.prediction.sequence import with_largest_seq
from ebbtide.prediction.sweep import predict_batches
from ebbtide.trace.model import Category, Trace

MiB = 1 << 20


def attending(seq: int, longest: int = 1 << 20, extra: bool = False) -> Trace:
    """Attention that holds its scores: memory with the square of the length."""
    b = Builder()
    b.phase("setup", 0)
    b.op("aten::empty")
    b.alloc(100 * MiB, Category.PARAMETER)
    b.phase("forward", 1)
    b.op("aten::mm", flops=seq, moved=seq)
    hidden = b.alloc(4096 * seq)
    b.op("aten::softmax" if extra else "aten::bmm", moved=seq)
    scores = b.alloc(64 * seq * seq)
    b.free(scores, hidden)
    return replace(b.build(), meta={"batch": 2, "seq": seq, "longest_seq": longest})


def asked(seq: int, others: tuple[int, ...], gpu: str = "l4", **kwargs: int) -> Prediction:
    trace = attending(seq, **kwargs)
    (alone,) = predict_batches({2: trace}, 2, [device(gpu)], wanted=FIGURES)
    (made,) = with_largest_seq(
        [alone], trace, [attending(other, **kwargs) for other in others], [device(gpu)]
    )
    return made


def test_the_longest_sequence_in_the_verdict_is_true() -> None:
    made = asked(512, (256, 1024))
    assert made.seq == 512
    assert made.largest_seq is not None and made.largest_seq > 1024
    assert f"longest sequence {made.largest_seq}" in made.verdict
    limit = Limit(usable_bytes=made.usable_bytes, context_bytes=made.context_bytes.likely)
    for seq, fits in ((made.largest_seq, True), (made.largest_seq + 1, False)):
        trace = attending(seq)
        run = replay(trace, trace.allocs.likely_bytes, limit=limit)
        assert (run.out_of_memory is None) == fits


def test_shorter_lengths_tell_as_well() -> None:
    assert asked(1024, (256, 512)).largest_seq == asked(512, (256, 1024)).largest_seq


def test_a_larger_gpu_takes_a_longer_one() -> None:
    l4, a100 = (asked(512, (256, 1024), gpu).largest_seq for gpu in ("l4", "a100-80gb"))
    assert l4 is not None and a100 is not None
    assert l4 < a100


def test_it_ends_where_the_model_has_no_more_positions() -> None:
    made = asked(512, (256, 1024), longest=2048)
    assert made.largest_seq == made.seq_cap == 2048
    assert made.verdict.endswith("longest sequence 2048 (all it has positions for)")


def test_what_it_rests_on_is_said() -> None:
    (guess,) = [g for g in asked(512, (256, 1024)).guesses if g.kind == "seq-curve"]
    assert "256, 512, 1024 tokens" in guess.text


@pytest.mark.parametrize("others", [(), (256,)])
def test_too_few_lengths_give_no_answer(others: tuple[int, ...]) -> None:
    made = asked(512, others)
    assert (made.seq, made.largest_seq, made.guesses) == (512, None, ())
    assert "sequence" not in made.verdict


def test_a_workload_without_a_length_is_left_alone() -> None:
    trace = replace(attending(512), meta={"batch": 2})
    alone = predict_batches({2: trace}, 2, [device("l4")], wanted=FIGURES)
    assert with_largest_seq(alone, trace, [], [device("l4")]) == alone


def test_lengths_that_take_other_kernels() -> None:
    trace = attending(512)
    (alone,) = predict_batches({2: trace}, 2, [device("l4")], wanted=FIGURES)
    others = [attending(256), attending(1024, extra=True)]
    (made,) = with_largest_seq([alone], trace, others, [device("l4")])
    assert made.largest_seq is None
    (guess,) = made.guesses
    assert guess.kind == "no-seq" and "aten::softmax" in guess.text
