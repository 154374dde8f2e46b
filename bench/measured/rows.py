"""The measured rows: one figure each, with the workload it was measured on."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data"
MIB = 1 << 20

# The catalogue's name for each way in which the rows write a GPU. "unknown" stands for the
# assumption that the row's own notes allow: a cuBLAS workspace of 8.125 MiB means that the
# GPU was older than Hopper, and no other fact about the GPU enters allocated or reserved.
_GPUS = (
    (r"^unknown|^CUDA$|^1 GPU", "a100-40gb"),
    (r"V100-SXM2-16GB|^Tesla V100", "v100-16gb"),
    (r"RTX 3060", "rtx-3060"),
    (r"RTX 4060", "rtx-4060"),
    (r"RTX 3070", "rtx-3070"),
    (r"RTX 3090", "rtx-3090"),
    (r"RTX 4090", "rtx-4090"),
    (r"RTX 2070 SUPER", "rtx-2070-super"),
    (r"Tesla K80", "k80"),
    (r"Titan V", "titan-v"),
    (r"A6000", "rtx-a6000"),
    (r"A100-SXM4-80GB", "a100-80gb"),
    (r"A100-SXM4-40GB|8x A100", "a100-40gb"),
    (r"L40S", "l40s"),
    (r"H100-96GB", "h100-80gb"),
    (r"H20-96GB", "h20"),
)
# What an "unknown" version means is said by the row: the year, or the release of its source.
_VERSIONS = (
    (r"torch\s*~?=*\s*(\d+\.\d+(?:\.\d+)?)", None),
    (r"^(\d+\.\d+\.\d+)\+cu", None),
    (r"CUDA 11\.2", "1.10.0"),
    (r"torch 2\.x", "2.6.0"),
    (r"2021-22|^2022", "1.10.0"),
    (r"torchtune|torch 1963fc8", "2.5.0"),
    (r"^2026", "2.9.0"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of ``measured.csv``; texts as published, sizes in bytes.

    Attributes:
        kind: ``"allocated"``, ``"reserved"``, ``"nvidia-smi"`` or ``"unknown"``.
        batch: sequences or images at once; None where the row has no batch.
        size: sequence length or image size, as the source writes it.
    """

    id: str
    source: str
    model: str
    framework: str
    gpu: str
    batch: int | None
    size: str
    precision: str
    optimizer: str
    checkpointing: str
    other: str
    kind: str
    measured_bytes: int
    notes: str

    @property
    def seq(self) -> int:
        """The first number of `size`: the sequence length, or the image's side."""
        found = re.search(r"\d+", self.size)
        if found is None:
            raise ValueError(f"{self.id}: no length in {self.size!r}")
        return int(found[0])


def read_rows(path: Path | None = None) -> list[Row]:
    """All rows, in the order of the file."""
    with (path or DATA / "measured.csv").open(newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
    return Row(
        id=line["id"],
        source=line["source"],
        model=line["model"],
        framework=line["framework_version"],
        gpu=line["gpu"],
        batch=int(line["batch"]) if line["batch"] else None,
        size=line["seq_or_image"],
        precision=line["dtype_precision"],
        optimizer=line["optimizer"],
        checkpointing=line["checkpointing"],
        other=line["other"],
        kind=line["metric_kind"],
        measured_bytes=round(float(line["measured_MiB"]) * MIB),
        notes=line["notes"],
    )


def gpu_name(row: Row) -> str:
    """The catalogue's name of the GPU that `row` was measured on.

    Raises:
        ValueError: the row names a GPU that is not in the table above.
    """
    for pattern, name in _GPUS:
        if re.search(pattern, row.gpu):
            return name
    raise ValueError(f"{row.id}: no catalogue name for {row.gpu!r}")


def torch_version(row: Row) -> str:
    """The version of torch whose rules apply, ``"2.6.0"``; the newest where none is said."""
    for pattern, version in _VERSIONS:
        found = re.search(pattern, row.framework)
        if found and version is None:
            text = found[1]
            return text if text.count(".") == 2 else f"{text}.0"
        if found and version is not None:
            return version
    return "2.6.0"


def read_configs() -> dict[str, dict[str, Any]]:
    """Architectures by published name; keys are Transformers configuration fields."""
    configs: dict[str, Any] = json.loads((DATA / "configs.json").read_text())
    return {name: value for name, value in configs.items() if not name.startswith("_")}
