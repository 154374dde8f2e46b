"""Which workload stands for which row: the table behind `case_of`.

Imports of torch stay inside the workloads' modules; each function here turns a row's
text into arguments.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from . import (
    bert_large,
    cs336_sil,
    cs336_wed,
    litgpt,
    peft_math,
    qwen3,
    schedtune,
    small,
    xmem,
)
from .case import CATALOGUE, GROWTH, LOADED, STATED, Case, Unbuilt, Workload, makes, place
from .meter import Meter
from .rows import Row, read_configs


@makes("snap-wed-")
def wed(row: Row) -> Case:
    """The medium decoder, training or inference."""
    amp = row.precision.startswith("bf16")
    step = cs336_wed.train if "train" in row.id else cs336_wed.infer

    def run(device: Any, meter: Meter) -> None:
        model = cs336_wed.build(row.seq).to(device)
        step(model, row.batch or 1, row.seq, amp=amp, meter=meter)

    return Case(row=row, group="eager", run=run, shared=_without_kind(row), **place(row))


@makes("snap-sil-attn-")
def sil_attention(row: Row) -> Case:
    """Attention from an empty allocator."""

    def run(device: Any, meter: Meter) -> None:
        cs336_sil.attend_and_back(row.batch or 1, row.seq, 16, device)

    return Case(row=row, group="eager", run=run, shared=_without_kind(row), **place(row))


@makes("snap-sil-fwd-")
def sil_forward(row: Row) -> Case:
    """The small decoder's forward pass."""

    def run(device: Any, meter: Meter) -> None:
        model = cs336_sil.build(row.seq).to(device)
        cs336_sil.forward_only(model, row.batch or 1, row.seq, meter)

    return Case(row=row, group="eager", run=run, shared=_without_kind(row), **place(row))


def _without_kind(row: Row) -> str:
    """Two rows, allocated and reserved, come from one recording."""
    return row.id.rsplit("-", 1)[0]


@makes("cs336-attn-")
def attention_before_backward(row: Row) -> Case:
    """`memory_allocated()` before backward."""
    found = re.search(r"d=(\d+)", row.model)
    if found is None:
        raise ValueError(f"{row.id}: no width in {row.model!r}")
    width = int(found[1])

    def run(device: Any, meter: Meter) -> None:
        small.attention_before_backward(row.batch or 1, row.seq, width, device, meter)

    return Case(row=row, group="eager", run=run, moment="before backward", **place(row))


@makes("xmem-")
def xmem_row(row: Row) -> Case:
    """Four iterations; images where the row's model is torchvision's.

    The first NVML sample is taken after `set_per_process_memory_fraction`
    (exp/trainer/__init__.py of the source), which asks the driver for the free memory
    (setMemoryFraction in c10/cuda/CUDACachingAllocator.cpp, torch 2.6) and so makes the
    context: the row has what came after it.

    For language models the loop then waits two seconds. For images it does not: the thread
    that samples starts as the model is moved (exp/trainer/train_loop.py), and the first
    sample has the model in it. Six other runs of the source show that, ConvNeXt-Tiny on the
    RTX 3060 (001-Anova: Adam with 200, 300 and 500 images, SGD likewise): five measured 126 to
    134 MiB less than is reserved here, whatever the batch, and the model takes 128.
    """
    vision = row.model.startswith("torchvision")
    draws: tuple[tuple[Workload, int], ...] = ()
    if not vision:
        drawn = xmem.draws(row).most_common()
        draws = tuple((partial(_xmem_language, row, seqs), count) for seqs, count in drawn)
    return Case(
        row=row,
        group="xmem",
        run=partial(_xmem_vision, row) if vision else draws[0][0],
        draws=draws,
        context=LOADED if vision else GROWTH,
        **place(row),
    )


def _xmem_vision(row: Row, device: Any, meter: Meter) -> None:
    xmem.train_vision(row, device, meter)


def _xmem_language(row: Row, seqs: tuple[int, ...], device: Any, meter: Meter) -> None:
    xmem.train_language(row, device, seqs=seqs)


@makes("hf-bertlarge-ctx")
def bert_context(row: Row) -> Case:
    """A context and a tensor of one element."""
    return Case(
        row=row,
        group="context",
        run=lambda device, meter: small.tiny_tensor(device),
        context=CATALOGUE,
        **place(row),
    )


@makes("hf-bertlarge-load")
def bert_weights(row: Row) -> Case:
    """The weights alone, on top of the context of the row before."""

    def run(device: Any, meter: Meter) -> None:
        model = bert_large.load(read_configs()["bert-large-uncased"], device)
        meter.note("loaded", meter.allocated())
        del model

    return Case(row=row, group="bert", run=run, context=STATED, **place(row))


@makes(r"hf-bertlarge-\d")
def bert(row: Row) -> Case:
    """Three optimizer steps."""
    found = re.search(r"grad_accum=(\d+)", row.other)
    accumulate = int(found[1]) if found else 1

    def run(device: Any, meter: Meter) -> None:
        model = bert_large.BertClassifier(
            read_configs()["bert-large-uncased"],
            checkpointing=row.checkpointing == "gradient checkpointing",
        )
        bert_large.train(
            model,
            device=device,
            batch=row.batch or 1,
            seq=row.seq,
            accumulate=accumulate,
            amp="AMP" in row.precision,
            optimizer=row.optimizer,
            meter=meter,
        )

    return Case(row=row, group="bert", run=run, context=STATED, **place(row))


@makes("qwen3-")
def qwen3_row(row: Row) -> Case:
    """The end of decoding."""
    dense = "A3B" not in row.model
    group = "qwen3 dense BF16" if dense and row.precision == "BF16" else "qwen3 packed or MoE"

    def run(device: Any, meter: Meter) -> None:
        qwen3.decode(qwen3.build(row, device), row.seq, device, meter)

    return Case(row=row, group=group, run=run, moment="end of decoding", **place(row))


@makes("schedtune-")
def schedtune_row(row: Row) -> Case:
    """Three steps with SGD."""
    return Case(
        row=row,
        group="schedtune",
        run=partial(_schedtune, row, "SGD"),
        context=CATALOGUE,
        assumption="plain SGD: the source does not state the optimizer",
        **place(row),
    )


def _schedtune(row: Row, optimizer: str, device: Any, meter: Meter) -> None:
    schedtune.train(row, device, optimizer)


@makes("peft-mm-")
def peft_row(row: Row) -> Case | Unbuilt:
    """Training steps up to the longest batch, then a generation."""
    try:
        peft_math.adapter(row)
    except KeyError as error:
        return Unbuilt(row=row, group="peft", reason=str(error.args[0]))

    def run(device: Any, meter: Meter) -> None:
        peft_math.train(peft_math.build(row, device), row, device, meter)

    return Case(
        row=row,
        group="peft",
        run=run,
        assumption="the lengths that met in a batch are not published: 300, 500 and 768 tokens",
        **place(row),
    )


@makes("nbv-144-")
def repeated_linear(row: Row) -> Case:
    """A hundred times the same layer, forward."""

    def run(device: Any, meter: Meter) -> None:
        small.repeated_linear(row.batch or 1, row.seq, device, meter)

    return Case(row=row, group="reports", run=run, moment="after forward", **place(row))


@makes("xt-325-")
def flash_decoder(row: Row) -> Case:
    """Forward with and without a mask."""

    def run(device: Any, meter: Meter) -> None:
        small.flash_decoder(row.batch or 1, row.seq, masked=row.id.endswith("-mask"), device=device)

    return Case(
        row=row,
        group="reports",
        run=run,
        context=CATALOGUE,
        assumption="the kind of figure and the GPU are not stated: nvidia-smi on an A100",
        **place(row),
    )


@makes("ctx-")
def context(row: Row) -> Case:
    """A context and a tensor of one element."""
    return Case(
        row=row,
        group="context",
        run=lambda device, meter: small.tiny_tensor(device),
        context=CATALOGUE,
        **place(row),
    )


@makes("dstune-97712-")
def foreach_report(row: Row) -> Unbuilt:
    """Only the difference between two optimizers is known."""
    return Unbuilt(
        row=row, group="reports", reason="the report does not say which model or batch it measured"
    )


@makes("litgpt-")
def litgpt_row(row: Row) -> Case | Unbuilt:
    """LoRA or inference with Transformers' equivalent of the model."""
    if re.search(r"x\d$", row.gpu):
        return Unbuilt(row=row, group="litgpt", reason="parameters sharded over several GPUs")
    if "-Adapter-" in row.id:
        return Unbuilt(
            row=row,
            group="litgpt",
            reason="LLaMA-Adapter is litgpt's own code, and PEFT's fits LLaMA alone",
        )

    def run(device: Any, meter: Meter) -> None:
        model = litgpt.build(row, device)
        if "-infer-" in row.id:
            litgpt.generate(model, device, meter)
        else:
            litgpt.finetune(model, row, device, meter)

    return Case(
        row=row,
        group="litgpt",
        run=run,
        assumption="Transformers' equivalent of litgpt's model code",
        **place(row),
    )


@makes("qwen-Qwen-")
def qwen_row(row: Row) -> Unbuilt:
    """Not rebuilt."""
    return Unbuilt(
        row=row,
        group="other",
        reason="the model's code is remote, DeepSpeed's buffers "
        "and the kind of figure are not stated",
    )


@makes("torchtune-")
def torchtune_row(row: Row) -> Unbuilt:
    """Not rebuilt."""
    reason = (
        "the longest batch of the data set is not published"
        if "llama2-7b" in row.id
        else "recipe under torch.compile, whose memory plan is not modelled"
    )
    return Unbuilt(row=row, group="other", reason=reason)


@makes("titan-")
def titan_row(row: Row) -> Unbuilt:
    """Not rebuilt."""
    return Unbuilt(row=row, group="other", reason="parameters sharded over several GPUs (FSDP2)")


@makes("peft-img-")
def peft_image_row(row: Row) -> Unbuilt:
    """Not rebuilt."""
    return Unbuilt(
        row=row,
        group="other",
        reason="the model's class is in diffusers and its configuration is not published "
        "outside the hub",
    )
