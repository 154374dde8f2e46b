"""What users of other estimators ran into (public reports), held against predictions."""

from __future__ import annotations

import json

from tests.prediction.builder import Builder, training
from tests.prediction.samples import device
from tests.prediction.test_replaying import scattered

from ebbtide.prediction.build import FIGURES, predict_trace
from ebbtide.prediction.curve import BATCH_CAP
from ebbtide.prediction.sweep import predict_batches
from ebbtide.trace.model import Category, Guess, Trace
from ebbtide.units import MiB, Range

SEVERAL = {batch: training(batch) for batch in (2, 4, 8)}


def answer(**settings: object) -> dict[str, object]:
    (made,) = predict_batches(SEVERAL, 4, [device("l4")], **settings)  # type: ignore[arg-type]
    return {**made.to_json(), "seconds": None}


def test_the_same_question_has_the_same_answer() -> None:
    """torchinfo#187: results differ between machines."""
    assert json.dumps(answer()) == json.dumps(answer())


def test_three_figures_and_their_gap_is_explained() -> None:
    """peft#779, prime-rl#1118, pytorch#37250: the printed peak is not what nvidia-smi shows."""
    made = predict_trace(training(4), device("l4", Range.exact(300 * MiB)))
    assert made.peak_allocated_bytes < made.peak_reserved_bytes < made.process_bytes.likely
    explained = made.ledger["cached/fragmentation"] + made.ledger["CUDA context"]
    assert made.process_bytes.likely - explained == made.peak_allocated_bytes


def test_what_the_first_step_leaves_is_there_in_the_second() -> None:
    """Lightning#8028, #9625: the batch that was found fails in the next run."""
    single = predict_trace(training(4, steps=1), device("l4"), wanted=FIGURES)
    several = predict_trace(training(4, steps=3), device("l4"), wanted=FIGURES)
    # In the second step the optimizer's state is already there during backward.
    assert several.peak_reserved_bytes >= single.peak_reserved_bytes


def test_no_absurd_batch() -> None:
    """Lightning#3259, #11295, #20614: a batch of 67 million, or no cap at all."""
    tiny = {batch: training(batch, layers=1, width=8) for batch in (2, 4)}
    (made,) = predict_batches(tiny, 2, [device("b200")], wanted=FIGURES)
    assert made.largest_batch == BATCH_CAP
    assert "or more" in made.verdict


def logits(batch: int, tokens: int, vocabulary: int = 50_257) -> Trace:
    b = Builder()
    b.phase("inference", 1)
    b.op("aten::mm", "lm_head")
    b.alloc(4 * batch * tokens * vocabulary)
    return b.build()


def test_logits_of_the_longest_request_decide_the_batch() -> None:
    """lm-evaluation-harness#1678: the automatic batch runs out of memory all the time."""
    traces = {batch: logits(batch, tokens=2048) for batch in (1, 2)}
    (made,) = predict_batches(traces, 1, [device("l4", Range.exact(0))], wanted=FIGURES)
    assert made.largest_batch == made.usable_bytes // (4 * 2048 * 50_257)


def test_fragmentation_is_shown_with_its_largest_hole() -> None:
    """pytorch#35901, #29554, #173049: out of memory with half the card idle."""
    made = predict_trace(scattered().build(), device("l4"))
    assert made.ledger["cached/fragmentation"] > 0.5 * made.peak_reserved_bytes
    assert made.largest_hole_bytes == 16 * MiB
    assert "largest hole" not in made.verdict


def test_a_workspace_that_doubles_memory_is_a_range() -> None:
    """pytorch#13412, deeplab-pytorch#74: cuDNN's choice doubles memory."""
    made = predict_trace(
        training(4, workspace=(0, 50 * MiB, 400 * MiB)), device("l4"), wanted=FIGURES
    )
    assert made.process_bytes.high - made.process_bytes.likely > 300 * MiB
    assert made.process_bytes.low < made.process_bytes.likely


def test_a_kv_cache_has_its_own_line() -> None:
    """accelerate#3297: an estimate far from what serving takes."""
    b = Builder()
    b.phase("inference", 1)
    for layer in range(4):
        b.op("aten::empty", f"model.layers.{layer}.self_attn")
        b.alloc(10 * MiB, Category.KV_CACHE)
    made = predict_trace(b.build(), device("l4"))
    assert made.ledger["KV cache"] == 40 * MiB
    assert {row.category for row in made.alive} == {"KV cache"}


def test_nothing_unknown_is_skipped_in_silence() -> None:
    """aioway (koila)#23: unknown layers were ignored and memory ran out all the same."""
    b = Builder()
    b.phase("forward", 1)
    b.op("custom::op")
    b.alloc(5 * MiB, Category.OTHER)
    b.guesses.append(Guess(kind="unknown-op", text="custom::op is not known.", count=1))
    made = predict_trace(b.build(), device("l4"))
    assert made.ledger["other"] == 5 * MiB
    assert [guess.kind for guess in made.guesses] == ["unknown-op"]
    assert json.loads(json.dumps(made.to_json()))["guesses"][0]["kind"] == "unknown-op"
