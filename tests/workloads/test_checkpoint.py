"""Headers of safetensors files: right, cut and hostile."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from ebbtide.errors import TargetError
from ebbtide.workloads.checkpoint import (
    ELEMENT_BYTES,
    Stored,
    find_weights,
    read_checkpoint,
    read_header,
)

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


@given(
    tensors=st.dictionaries(
        st.from_regex(r"[a-z.]{1,20}", fullmatch=True),
        st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(sorted(DTYPES))),
        max_size=5,
    )
)
def test_what_safetensors_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[list[int], str]]
) -> None:
    path = tmp_path_factory.mktemp("c") / "m.safetensors"
    made = {n: torch.zeros(shape, dtype=DTYPES[d]) for n, (shape, d) in tensors.items()}
    path.write_bytes(save(made))
    read = read_header(path)
    assert read == {n: Stored(shape=tuple(s), dtype=d) for n, (s, d) in tensors.items()}
    assert {n: s.bytes for n, s in read.items()} == {
        n: t.numel() * t.element_size() for n, t in made.items()
    }


def test_every_element_size_is_torchs() -> None:
    from ebbtide.workloads.stored import TORCH

    assert {n: d.itemsize for n, d in TORCH.items()} == ELEMENT_BYTES


@given(data=st.binary(max_size=200))
def test_noise_is_refused_with_the_files_name(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("c") / "noise.safetensors"
    path.write_bytes(data)
    try:
        found = read_header(path)
    except TargetError as error:
        assert "noise.safetensors" in str(error)
    else:
        assert json.loads(data[8:]) is not None and isinstance(found, dict)


def _write(path: Path, header: bytes, length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    return path


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        (b"{}", 1 << 60, "no sane length"),
        (b'{"a": {"dtype": "F32"', None, "no header that can be read"),
        (b"[1, 2]", None, "no header that can be read"),
        (b'{"a": {"dtype": "F32"}}', None, "no header that can be read"),
        (b'{"a": {"dtype": "F3", "shape": [1]}}', None, "unknown type F3"),
        (b'{"a": {"dtype": ["F32"], "shape": [1]}}', None, "no header that can be read"),
        (b'{"a": {"dtype": "F32", "shape": [-4, 4]}}', None, "a list of sizes as shape"),
        (b'{"a": {"dtype": "F32", "shape": [1.5]}}', None, "a list of sizes as shape"),
        (b'{"a": {"dtype": "F32", "shape": [true]}}', None, "a list of sizes as shape"),
        (b'{"a": {"dtype": "F32", "shape": [Infinity]}}', None, "a list of sizes as shape"),
        (b'{"a": {"dtype": "F32", "shape": "44"}}', None, "a list of sizes as shape"),
        (b'{"a": {"dtype": "F32", "shape": [4294967296, 4294967296]}}', None, "impossible size: a"),
        (b"[" * 100_000, None, "no header that can be read"),
    ],
)
def test_a_bad_header(tmp_path: Path, header: bytes, length: int | None, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        read_header(_write(tmp_path / "m.safetensors", header, length))


def test_metadata_is_no_tensor(tmp_path: Path) -> None:
    header = b'{"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2]}}'
    assert set(read_header(_write(tmp_path / "m.safetensors", header))) == {"a"}


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    for i in (1, 2):
        header = json.dumps({f"w{i}": {"dtype": "BF16", "shape": [i, 4]}}).encode()
        _write(tmp_path / f"model-0000{i}-of-00002.safetensors", header)
    checkpoint = read_checkpoint(tmp_path)
    assert len(find_weights(tmp_path)) == 2
    assert {n: s.bytes for n, s in checkpoint.tensors.items()} == {"w1": 8, "w2": 16}
    assert checkpoint.config is None and checkpoint.quantization is None


def test_a_configuration_that_is_no_json(tmp_path: Path) -> None:
    _write(tmp_path / "m.safetensors", b"{}")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TargetError, match=r"config\.json cannot be read as JSON"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(TargetError, match=r"config\.json holds no JSON object but a list"):
        read_checkpoint(tmp_path)


def test_bitsandbytes_weights_are_bytes(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [64]}}).encode()
    _write(tmp_path / "m.safetensors", header)
    config = {"quantization_config": {"quant_method": "bitsandbytes"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(tmp_path).quantization == "nf4"
