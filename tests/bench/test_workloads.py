"""The rebuilt workloads run on the CPU, at sizes that fit, and take what arithmetic says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from measured import bert_large, cs336_sil, cs336_wed, qwen3, schedtune, small, xmem
from measured.case import BATCH, MODEL
from measured.meter import BLOCK, CountingMeter
from measured.rows import Row, read_rows
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ebbtide.workloads.torchvision_mend import mend_torchvision

mend_torchvision()
CPU = torch.device("cpu")
BY_ID = {row.id: row for row in read_rows()}
TINY_BERT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 30_000,
    "max_position_embeddings": 8,
    "type_vocab_size": 2,
}
TINY_QWEN = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 1000,
}


@pytest.fixture
def meter() -> Iterator[CountingMeter]:
    counting = CountingMeter()
    with counting:
        yield counting


def row_of(row_id: str, **changes: Any) -> Row:
    return replace(BY_ID[row_id], **changes)


# -- the counter itself


def test_storages_are_counted_once_and_freed(meter: CountingMeter) -> None:
    x = torch.zeros(1000)
    view = x[10:]
    assert meter.allocated() == -(-4000 // BLOCK) * BLOCK
    del x
    assert meter.allocated() > 0
    del view
    assert meter.allocated() == 0
    assert meter.peak() == -(-4000 // BLOCK) * BLOCK
    meter.reset_peak()
    assert meter.peak() == 0


def test_what_was_there_before_can_be_held() -> None:
    counting = CountingMeter()
    layer = nn.Linear(8, 8)
    counting.hold(layer.parameters())
    assert counting.allocated() == 2 * BLOCK


# -- the decoders of the snapshots


def test_the_small_decoder_makes_what_the_snapshot_recorded() -> None:
    """681 allocations in the recorded forward pass, and its peak without workspace and slack."""
    counting = CountingMeter()

    class Recorded:
        def reset_peak(self) -> None:
            counting.sizes.clear()
            counting.reset_peak()

    with FakeTensorMode(), counting:
        cs336_sil.forward_only(cs336_sil.build(128), 4, 128, Recorded())  # type: ignore[arg-type]
    assert len(counting.sizes) == 681
    assert counting.sizes.count(6_291_456) == 12 * 5
    # Measured: 534.95 MiB; 8.125 of it are cuBLAS's, the rest blocks that are not split.
    assert counting.peak() / 2**20 == pytest.approx(534.95 - 8.125, rel=0.01)


def test_the_medium_decoder_has_the_parameters_that_the_row_says() -> None:
    with torch.device("meta"):
        model = cs336_wed.build(128)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(423e6, rel=0.01)


@pytest.mark.parametrize("amp", [False, True])
def test_the_medium_decoder_trains(amp: bool, meter: CountingMeter) -> None:
    model = cs336_wed.build(8, d=16, heads=2, d_ff=32, layers=2)
    for p in model.parameters():
        nn.init.normal_(p, std=0.02)
    before = model.head.weight.detach().clone()
    cs336_wed.train(model, 2, 8, amp=amp, meter=meter)
    assert model.head.weight.isfinite().all()
    assert not torch.equal(before, model.head.weight)


def test_the_loop_optimizer_is_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(5)) for _ in range(2))
    loop = cs336_wed.LoopAdamW([ours])
    reference = torch.optim.AdamW([theirs], lr=1e-3, weight_decay=0.01)
    for _ in range(5):
        grad = torch.randn(5)
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        loop.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_handwritten_cross_entropy_is_cross_entropy() -> None:
    logits, targets = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(cs336_wed.cross_entropy(logits, targets), expected)


def test_both_attentions_agree_with_torch() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    mask = torch.ones(5, 5).tril().bool()
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(cs336_wed.attention(q, k, v, mask), expected)
    torch.testing.assert_close(cs336_sil.attention(q, k, v, mask), expected)


def test_inference_leaves_nothing_behind(meter: CountingMeter) -> None:
    model = cs336_wed.build(8, d=16, heads=2, d_ff=32, layers=1)
    before = meter.allocated()
    cs336_wed.infer(model, 2, 8, amp=False, meter=meter)
    assert meter.allocated() == before


# -- small rows


def test_attention_before_backward_is_arithmetic(meter: CountingMeter) -> None:
    small.attention_before_backward(2, 64, 16, CPU, meter)
    qkv, scores, output = 3 * 2 * 64 * 16 * 4, 2 * 64 * 64 * 4, 2 * 64 * 16 * 4
    grads = qkv  # on the CPU the leaves themselves are here, and their gradients
    assert meter.notes["before backward"] == qkv + scores + output + grads


def test_a_layer_applied_a_hundred_times_keeps_a_hundred_outputs(meter: CountingMeter) -> None:
    small.repeated_linear(4, 32, CPU, meter)
    layer = 32 * 32 * 4 + BLOCK
    assert meter.notes["after forward"] == layer + 101 * 4 * 32 * 4


@pytest.mark.parametrize("masked", [False, True])
def test_the_flash_decoder_runs(masked: bool) -> None:
    model = small.FlashDecoder(16, 2, 2, head=8)
    x = torch.randn(2, 6, 16)
    mask = torch.ones(2, 6, dtype=torch.bool) if masked else None
    assert model(x, mask).shape == x.shape


def test_a_full_mask_changes_nothing_but_memory() -> None:
    torch.manual_seed(0)
    model = small.FlashDecoder(16, 2, 2, head=8)
    x = torch.randn(2, 6, 16)
    masked = model(x, torch.ones(2, 6, dtype=torch.bool))
    torch.testing.assert_close(model(x, None), masked)


# -- BERT-large and the optimizers of its time


@pytest.mark.parametrize("optimizer", ["AdamW (HF)", "Adafactor"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_bert_trains(optimizer: str, checkpointing: bool, meter: CountingMeter) -> None:
    model = bert_large.BertClassifier(TINY_BERT, checkpointing=checkpointing)
    before = model.classifier.weight.detach().clone()
    bert_large.train(
        model,
        device=CPU,
        batch=2,
        seq=8,
        accumulate=2,
        amp=False,
        optimizer=optimizer,
        meter=meter,
    )
    assert not torch.equal(before, model.classifier.weight)
    # Gradients were cleared to zero, not dropped.
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_bert_large_has_the_published_parameters() -> None:
    from measured.rows import read_configs

    with torch.device("meta"):
        model = bert_large.BertClassifier(read_configs()["bert-large-uncased"], checkpointing=False)
    assert sum(p.numel() for p in model.parameters()) == 335_143_938


def test_the_old_softmax_is_softmax() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(bert_large.OldSoftmax.apply(x), torch.softmax(x, -1))
    assert torch.autograd.gradcheck(bert_large.OldSoftmax.apply, (x,))


def test_the_old_softmax_keeps_its_input(meter: CountingMeter) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    scores = x * 2.0
    out = bert_large.OldSoftmax.apply(scores)
    del scores
    held = meter.allocated()
    kept = torch.softmax(x * 2.0, -1)
    assert out.shape == kept.shape
    assert held - (meter.allocated() - held) == x.numel() * 4 + x.numel() * 4


def test_checkpointing_keeps_less() -> None:
    peaks = []
    for checkpointing in (False, True):
        counting = CountingMeter()
        with counting:
            model = bert_large.BertClassifier(
                {**TINY_BERT, "num_hidden_layers": 6, "vocab_size": 100},
                checkpointing=checkpointing,
            )
            counting.reset_peak()
            start = counting.allocated()
            ids = torch.randint(0, 100, (64, 8))
            model(ids, torch.zeros(64, dtype=torch.long)).backward()
            peaks.append(counting.peak() - start)
    assert peaks[1] < 0.7 * peaks[0]


def test_adafactor_keeps_a_row_and_a_column() -> None:
    matrix, vector = nn.Parameter(torch.ones(6, 4)), nn.Parameter(torch.ones(6))
    matrix.grad, vector.grad = torch.ones(6, 4), torch.ones(6)
    optimizer = bert_large.OldAdafactor([matrix, vector])
    optimizer.step()
    assert [t.shape for t in optimizer.state[matrix]] == [(6,), (4,)]
    assert [t.shape for t in optimizer.state[vector]] == [(6,)]
    assert (matrix < 1).all() and (vector < 1).all()


def test_the_old_adamw_keeps_two_moments_and_skips_what_has_no_gradient() -> None:
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    used.grad = torch.ones(3)
    optimizer = bert_large.OldAdamW([used, unused])
    optimizer.step()
    assert len(optimizer.state[used]) == 2
    assert unused not in optimizer.state
    assert (used < 1).all() and (unused == 1).all()


# -- images, text, decoding


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
def test_the_vision_loop_trains(optimizer: str) -> None:
    row = row_of("xmem-MobeNetV3Small_SGD_258_1_174a", batch=2, optimizer=optimizer)
    meter = CountingMeter()
    xmem.train_vision(row, CPU, meter, image=32)
    assert 0 <= meter.notes[MODEL] <= meter.notes[BATCH]


def test_models_have_the_classes_that_the_source_uses() -> None:
    small_net = xmem.vision_model(BY_ID["xmem-MobeNetV3Small_SGD_258_1_174a"])
    assert small_net.classifier[-1].out_features == 10  # type: ignore[index, union-attr]
    convnext = xmem.vision_model(BY_ID["xmem-ConvNeXtTiny_Adam_300_1_7972"])
    assert convnext.classifier[-1].out_features == 1000  # type: ignore[index, union-attr]


def test_an_optimizer_that_torch_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="Lion"):
        xmem.optimizer_class("Lion")
    with pytest.raises(ValueError, match="lr_scheduler"):
        xmem.optimizer_class("lr_scheduler")


@pytest.mark.parametrize(
    ("row_id", "millions"),
    [
        ("xmem-EleutherAI-gpt-neo-125M_SGD_15_1_10-2d94", 125.2),
        ("xmem-cerebras-Cerebras-GPT-111M_AdamW_10_1_8-fc0b", 111.05),
        ("xmem-T5-small_AdamW_10_1_0512", 60.5),
        ("xmem-meta-llama-Llama-3.2-3B-Instruct_SGD_1_0_10-2a72", 3212.7),
        ("xmem-deepseek-ai-DeepSeek-R1-Distill-Qwen-1.5B_SGD_1_0_11-1f12", 1777.1),
    ],
)
def test_language_models_have_the_published_parameters(row_id: str, millions: float) -> None:
    with torch.device("meta"):
        model = xmem.language_model(BY_ID[row_id])
    count = sum(p.numel() for p in model.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.001)


def test_the_language_loop_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=8)
    )
    before = model.transformer.wte.weight.detach().clone()
    monkeypatch.setattr(xmem, "language_model", lambda row: model)
    row = row_of("xmem-cerebras-Cerebras-GPT-111M_AdamW_10_1_8-fc0b", batch=2)
    xmem.train_language(row, CPU, seqs=(6, 8, 8, 8))
    assert not torch.equal(before, model.transformer.wte.weight)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_schedtune_trains(optimizer: str) -> None:
    schedtune.train(row_of("schedtune-resnet50-b8-TeslaV100", batch=2), CPU, optimizer, image=32)


@pytest.mark.parametrize("precision", ["BF16", "FP8", "AWQ-INT4"])
def test_decoding_ends_with_weights_and_cache(precision: str, meter: CountingMeter) -> None:
    row = row_of("qwen3-Qwen3-8B-BF16-in1", precision=precision)
    fields = {**TINY_QWEN, "hidden_size": 128, "intermediate_size": 256}
    model = qwen3.build(row, CPU, **fields)
    before = meter.allocated()
    qwen3.decode(model, 4, CPU, meter, generated=28)
    cache = 3 * 2 * 32 * 16 * 2  # layers, keys and values, tokens, width, bytes
    rest = meter.notes["end of decoding"] - before
    assert cache <= rest <= cache + 3 * BLOCK


def test_packed_weights_take_their_share() -> None:
    fields = {**TINY_QWEN, "hidden_size": 1024, "intermediate_size": 1024, "vocab_size": 8}
    sizes = {}
    for precision in ("BF16", "FP8", "AWQ-INT4"):
        row = row_of("qwen3-Qwen3-8B-BF16-in1", precision=precision)
        model = qwen3.build(row, CPU, **fields)
        tensors = [*model.parameters(), *model.buffers()]
        sizes[precision] = sum(t.numel() * t.element_size() for t in tensors)
    assert sizes["FP8"] / sizes["BF16"] == pytest.approx(0.5, abs=0.02)
    assert sizes["AWQ-INT4"] / sizes["BF16"] == pytest.approx(0.26, abs=0.02)
