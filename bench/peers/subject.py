"""A row as the other tools take it: a model, a batch, a loss and an optimizer's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measured import bert_large, cs336_sil, cs336_wed, xmem
from measured.rows import Row, read_configs
from torch import Tensor, nn

Batch = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What a row trains or runs.

    Attributes:
        row: the measured row.
        build: makes the model, on the default device.
        batch: makes one batch, keyword arguments or the single entry ``"input"``.
        loss: of the model and a batch.
        optimizer: name in `torch.optim`; None for inference.
        precision: as `accelerate estimate-memory` names it.
    """

    row: Row
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: str | None
    precision: str = "float32"


def subject_of(row: Row) -> Subject | None:
    """The subject of `row`; None for rows that the other tools are not asked about."""
    if row.id.startswith("xmem-"):
        return _vision(row) if row.model.startswith("torchvision") else _language(row)
    if row.id.startswith("hf-bertlarge-") and row.batch:
        return _bert(row)
    if row.id.startswith(("snap-wed-", "snap-sil-fwd-")) and row.kind == "allocated":
        return _decoder(row)
    if row.id.startswith("qwen3-") and row.precision == "BF16" and "A3B" not in row.model:
        return _qwen(row)
    return None


def call(model: nn.Module, batch: Batch) -> Any:
    """The model's output for `batch`."""
    if set(batch) <= {"input", "target"}:
        return model(batch["input"])
    return model(**batch)


def _classification(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(call(model, batch), batch["target"])


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = call(model, batch).loss
    return loss


def _vision(row: Row) -> Subject:
    shape = (row.batch or 1, 3, xmem.IMAGE, xmem.IMAGE)

    def batch() -> Batch:
        return {"input": torch.randn(shape), "target": torch.randint(0, 10, shape[:1])}

    return Subject(
        row=row,
        build=lambda: xmem.vision_model(row),
        batch=batch,
        loss=_classification,
        optimizer=row.optimizer,
    )


def _language(row: Row) -> Subject:
    shape = (row.batch or 1, row.seq)

    def batch() -> Batch:
        ids = torch.randint(0, 1000, shape)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    return Subject(
        row=row,
        build=lambda: xmem.language_model(row),
        batch=batch,
        loss=_own_loss,
        optimizer=row.optimizer,
    )


def _bert(row: Row) -> Subject:
    def batch() -> Batch:
        ids = torch.randint(100, 1000, (row.batch or 1, row.seq))
        return {"ids": ids, "labels": torch.randint(0, 2, (row.batch or 1,))}

    return Subject(
        row=row,
        build=lambda: bert_large.BertClassifier(
            read_configs()["bert-large-uncased"],
            checkpointing=row.checkpointing == "gradient checkpointing",
        ),
        batch=batch,
        loss=lambda model, batch: call(model, batch),
        optimizer="Adafactor" if row.optimizer == "Adafactor" else "AdamW",
        precision="float16" if "AMP" in row.precision else "float32",
    )


def _decoder(row: Row) -> Subject:
    wed = row.id.startswith("snap-wed-")

    def build() -> nn.Module:
        return cs336_wed.build(row.seq) if wed else cs336_sil.build(row.seq)

    def batch() -> Batch:
        shape = (row.batch or 1, row.seq)
        return {
            "input": torch.randint(0, 1000, shape),
            "target": torch.randint(0, 1000, shape),
        }

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return cs336_wed.cross_entropy(call(model, batch), batch["target"])

    return Subject(
        row=row,
        build=build,
        batch=batch,
        loss=loss,
        optimizer="AdamW" if "train" in row.id else None,
        precision="float16" if row.precision.startswith("bf16") else "float32",
    )


def _qwen(row: Row) -> Subject:
    from transformers import AutoConfig, AutoModelForCausalLM

    def build() -> nn.Module:
        fields: dict[str, Any] = dict(read_configs()[row.model.removeprefix("Qwen/")])
        fields.pop("architectures", None)
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        return model

    def batch() -> Batch:
        return {"input_ids": torch.randint(0, 1000, (1, row.seq))}

    return Subject(row=row, build=build, batch=batch, loss=_own_loss, optimizer=None)
