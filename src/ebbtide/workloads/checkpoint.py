"""A checkpoint on disk: its configuration, and what the headers of its weights say."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ebbtide.errors import TargetError

# Bytes an element, from the safetensors format (safetensors 0.5, `Dtype`).
ELEMENT_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4,
    "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U16": 2, "U32": 4, "U64": 8, "C64": 8,
    "F8_E8M0": 1,
}  # fmt: skip
# The format's own bound on a header, against files made to exhaust memory.
MAX_HEADER_BYTES = 100_000_000
# Offsets in a file have 64 bits, one of them for the sign in PyTorch.
MAX_TENSOR_BYTES = (1 << 63) - 1
# What reading a file of JSON may raise; nested deeply enough, it is a `RecursionError`.
_UNREADABLE = (OSError, ValueError, RecursionError)
NAMES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
QUANTIZED = {"F8_E4M3": "fp8", "F8_E5M2": "fp8", "I8": "int8"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One tensor of a file.

    Attributes:
        shape: as stored.
        dtype: safetensors' name, e.g. ``"BF16"``.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """What it takes on the device as it is stored."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The tensors of a checkpoint, and its configuration where there is one beside them."""

    tensors: dict[str, Stored]
    config: dict[str, Any] | None
    origin: str

    @property
    def dtype(self) -> str:
        """The dtype of `WorkloadOptions` that most unquantised elements have."""
        counted: Counter[str] = Counter()
        for tensor in self.tensors.values():
            if tensor.dtype in NAMES:
                counted[NAMES[tensor.dtype]] += prod(tensor.shape)
        return counted.most_common(1)[0][0] if counted else "bf16"

    @property
    def quantization(self) -> str | None:
        """The format of `WorkloadOptions` that most of the bytes are stored in, if any."""
        stated = ((self.config or {}).get("quantization_config") or {}).get("quant_method")
        counted: Counter[str] = Counter()
        for tensor in self.tensors.values():
            packed = "nf4" if tensor.dtype == "U8" and stated == "bitsandbytes" else ""
            counted[QUANTIZED.get(tensor.dtype, packed)] += tensor.bytes
        return counted.most_common(1)[0][0] or None if counted else None


def find_weights(path: Path) -> list[Path]:
    """The safetensors files of a folder, or the file itself."""
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    return [path] if path.suffix == ".safetensors" else []


def read_checkpoint(path: Path) -> Checkpoint:
    """Headers of a checkpoint folder or a safetensors file; the weights are not read.

    Raises:
        TargetError: there are none, or a header cannot be read.
    """
    files = find_weights(path)
    if not files:
        raise TargetError(f"{path} holds no .safetensors file and no config.json")
    tensors: dict[str, Stored] = {}
    for file in files:
        tensors |= read_header(file)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    config = None
    if beside.is_file():
        try:
            config = json.loads(beside.read_text())
        except _UNREADABLE as error:
            raise TargetError(f"{beside} cannot be read as JSON: {error}") from error
        if not isinstance(config, dict):
            raise TargetError(f"{beside} holds no JSON object but a {type(config).__name__}")
    return Checkpoint(tensors=tensors, config=config, origin=str(path))


def read_header(path: Path) -> dict[str, Stored]:
    """Names, shapes and dtypes in one safetensors file.

    Raises:
        TargetError: the file is cut or no safetensors file.
    """
    try:
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else MAX_HEADER_BYTES + 1
            if length > MAX_HEADER_BYTES:
                raise TargetError(f"{path} is no safetensors file: its header has no sane length")
            text = file.read(length)
        fields = json.loads(text)
        found = {name: _stored(entry) for name, entry in fields.items() if name != "__metadata__"}
    except (*_UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise TargetError(f"{path} has no header that can be read: {error}") from error
    large = sorted(name for name, tensor in found.items() if tensor.bytes > MAX_TENSOR_BYTES)
    if large:
        raise TargetError(f"{path} holds a tensor of impossible size: {large[0]}")
    return found


def _stored(entry: Any) -> Stored:
    shape, dtype = entry["shape"], entry["dtype"]
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"expected a list of sizes as shape, got {shape!r}"[:200])
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"it holds elements of unknown type {dtype}")
    return Stored(shape=tuple(shape), dtype=dtype)
