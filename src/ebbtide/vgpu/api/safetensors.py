"""safetensors files on the virtual GPU: an empty file whose header lists the shapes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.vgpu.api.surface import Surface, empty_fake
from ebbtide.vgpu.patches import PatchSet

_KEY = "ebbtide_shapes_only"
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def header_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a safetensors file: 8 bytes of length, then JSON."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    return header


def shapes_in(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Name to dtype and shape if the file holds shapes only, else None."""
    try:
        text = header_of(path).get("__metadata__", {}).get(_KEY)
    except (OSError, ValueError):
        return None
    return None if text is None else json.loads(text)


class ShapesOnlySlice:
    """What `safe_open(...).get_slice(name)` gives."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Its dtype, by safetensors' name."""
        return _NAMES[self._tensor.dtype]

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index]


class ShapesOnlyFile:
    """What `safe_open` gives for a file that holds shapes only."""

    def __init__(self, vgpu: Surface, path: Any, shapes: dict[str, Any], device: Any) -> None:
        self._vgpu, self._shapes = vgpu, shapes
        self._device = torch.device("cuda", device) if isinstance(device, int) else device
        self._metadata = header_of(path)["__metadata__"]

    def __enter__(self) -> ShapesOnlyFile:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._shapes)

    offset_keys = keys

    def metadata(self) -> dict[str, str]:
        """The metadata as saved."""
        return {key: value for key, value in self._metadata.items() if key != _KEY}

    def get_tensor(self, name: str) -> torch.Tensor:
        """A fake tensor."""
        dtype, shape = self._shapes[name]
        return empty_fake(self._vgpu, tuple(shape), _DTYPES[dtype], torch.device(self._device))

    def get_slice(self, name: str) -> ShapesOnlySlice:
        """A fake tensor of which a part is taken later."""
        return ShapesOnlySlice(self.get_tensor(name))


def _write(tensors: dict[str, torch.Tensor], path: str, metadata: Any) -> None:
    shapes = {name: (_NAMES[t.dtype], list(t.shape)) for name, t in tensors.items()}
    header = {"__metadata__": {**(metadata or {}), _KEY: json.dumps(shapes)}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)


def _save_file(vgpu: Surface, outbox: Any, original: Any) -> Callable[..., None]:
    def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
            original(tensors, filename, metadata)
            return
        _write(tensors, outbox.place(filename), metadata)
        vgpu.guess("save", "a checkpoint was saved: with shapes only, and removed at the end")

    return save_file


def _open(vgpu: Surface, outbox: Any, original: Any) -> Callable[..., Any]:
    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **more: Any) -> Any:
        path = outbox.find(filename)
        shapes = shapes_in(path)
        if shapes is None:
            return original(path, framework, device=device, **more)
        return ShapesOnlyFile(vgpu, path, shapes, device)

    return safe_open


def _load_file(open_file: Callable[..., Any]) -> Callable[..., Any]:
    def load_file(filename: Any, device: Any = "cpu", **more: Any) -> dict[str, torch.Tensor]:
        with open_file(filename, framework="pt", device=device) as file:
            return {name: file.get_tensor(name) for name in file.keys()}

    return load_file


def install(vgpu: Surface, patches: PatchSet, outbox: Any) -> None:
    """Replace safetensors' saving and opening."""
    module = safetensors.torch
    open_file = _open(vgpu, outbox, safetensors.safe_open)
    patches.everywhere(
        [
            (module.save_file, _save_file(vgpu, outbox, module.save_file)),
            (module.load_file, _load_file(open_file)),
            (safetensors.safe_open, open_file),
        ]
    )
