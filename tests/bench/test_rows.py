"""Reading the measured rows, and what is read out of their texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from measured.rows import MIB, Row, gpu_name, read_configs, read_rows, torch_version

from ebbtide.gpus import find

ROWS = read_rows()
BY_ID = {row.id: row for row in ROWS}


def test_every_line_is_read_once() -> None:
    assert len(ROWS) == 297
    assert len(BY_ID) == 297


def test_kinds_are_the_four_that_rows_have() -> None:
    kinds = Counter(row.kind for row in ROWS)
    assert set(kinds) == {"allocated", "reserved", "nvidia-smi", "unknown"}
    assert kinds["nvidia-smi"] > 100


def test_sizes_are_bytes() -> None:
    assert BY_ID["snap-sil-attn-reser"].measured_bytes == 3606 * MIB
    assert BY_ID["hf-bertlarge-0"].measured_bytes == 14949 * MIB
    assert all(row.measured_bytes > 100 * MIB or row.id.startswith("cs336") for row in ROWS)


@pytest.mark.parametrize(
    ("row_id", "gpu", "version"),
    [
        ("snap-wed-128-train-alloc", "a100-40gb", "2.11.0"),
        ("snap-sil-attn-alloc", "a100-40gb", "2.6.0"),
        ("xmem-VGG16_Adagrad_480_1_8d25", "rtx-3060", "2.6.0"),
        ("xmem-ConvNeXtTiny_AdamW_261_0_67d3", "rtx-4060", "2.6.0"),
        ("hf-bertlarge-0", "v100-16gb", "1.10.0"),
        ("hf-bertlarge-ctx", "v100-16gb", "1.10.0"),
        ("qwen3-Qwen3-8B-BF16-in1", "h20", "2.6.0"),
        ("schedtune-resnet50-b8-TeslaK80", "k80", "1.10.0"),
        ("ctx-titanv-torch13", "titan-v", "1.3.0"),
        ("peft-mm-boft--llama-3.2-3B-default", "l40s", "2.13.0"),
    ],
)
def test_gpu_and_version(row_id: str, gpu: str, version: str) -> None:
    assert gpu_name(BY_ID[row_id]) == gpu
    assert torch_version(BY_ID[row_id]) == version


def test_every_gpu_is_in_the_catalogue() -> None:
    for name in {gpu_name(row) for row in ROWS}:
        assert find(name).usable_bytes > 0


def test_every_version_has_two_numbers_at_least() -> None:
    for row in ROWS:
        assert len([int(part) for part in torch_version(row).split(".")]) >= 2


def test_an_unknown_gpu_is_named() -> None:
    row = _copy(ROWS[0], gpu="Voodoo 2")
    with pytest.raises(ValueError, match="Voodoo 2"):
        gpu_name(row)


def test_length_is_the_first_number() -> None:
    assert BY_ID["snap-wed-1024-train-alloc"].seq == 1024
    assert BY_ID["qwen3-Qwen3-8B-BF16-in14336"].seq == 14336
    with pytest.raises(ValueError, match="no length"):
        _ = _copy(ROWS[0], size="").seq


def test_configurations_have_a_model_type() -> None:
    configs = read_configs()
    assert "_about" not in configs
    assert all("model_type" in fields for fields in configs.values())
    assert configs["Qwen3-8B"]["hidden_size"] == 4096


def test_another_file_can_be_read(tmp_path: Path) -> None:
    lines = (Path(__file__).parents[2] / "bench/data/measured.csv").read_text().splitlines()
    path = tmp_path / "two.csv"
    path.write_text("\n".join([*lines[:3], ""]))
    assert [row.id for row in read_rows(path)] == [row.id for row in ROWS[:2]]


def _copy(row: Row, **changes: str) -> Row:
    from dataclasses import replace

    return replace(row, **changes)  # type: ignore[arg-type]
