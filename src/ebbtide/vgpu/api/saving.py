"""Saving and loading: files hold shapes only, and say so.

A file written on the virtual GPU is small and readable on it alone. It is never
put in the place of a file that holds real values, and it is removed when the
virtual GPU is left: a later run on a real GPU must not find it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.api.surface import Surface, empty_fake
from ebbtide.vgpu.patches import PatchSet


class Session:
    """The virtual GPU that is on, what is being read for it, and what it wrote."""

    vgpu: Surface | None = None
    map_location: Any = None
    fakes_written = 0


def shapes_only_tensor(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    """Make again a tensor of which a virtual GPU saved the shape.

    Raises:
        VirtualGpuError: no virtual GPU is on; the file has no values to give.
    """
    if Session.vgpu is None:
        raise VirtualGpuError(
            "This file was written on Ebbtide's virtual GPU: it holds the shapes of tensors and "
            "no values. Save it again from a run on a real device."
        )
    target = mapped(device, Session.map_location)
    with torch.no_grad():
        made = empty_fake(Session.vgpu, shape, dtype, target, stride)
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)


def mapped(device: str, map_location: Any) -> torch.device:
    """Where `torch.load` puts a tensor that was saved on `device`.

    Args:
        device: such as ``"cuda:0"``.
        map_location: as in `torch.load`: None, a device, a dictionary or a function.
    """
    if map_location is None:
        return torch.device(device)
    if isinstance(map_location, dict):
        return torch.device(map_location.get(device, device))
    if callable(map_location):
        storage = map_location(torch.UntypedStorage(0), device)
        return torch.device(device) if storage is None else storage.device
    return torch.device(map_location)


def _reduce(self: FakeTensor, protocol: Any) -> Any:
    Session.fakes_written += 1
    parameter = bool(getattr(self, "_is_param", False))
    return (
        shapes_only_tensor,
        (
            tuple(self.shape),
            tuple(self.stride()),
            self.dtype,
            str(self.fake_device),
            self.requires_grad,
            parameter,
        ),
    )


class Outbox:
    """Where files go that hold shapes only.

    A path that is free is used as it is; one where a real file lies is left alone,
    and a file in a temporary folder stands in for it.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._written: dict[str, str] = {}

    def place(self, path: str | os.PathLike[str]) -> str:
        """Where to write what was meant for `path`."""
        wanted = os.path.abspath(os.fspath(path))
        known = self._written.get(wanted)
        if known is not None:
            return known
        place = wanted
        if os.path.exists(wanted):
            place = os.path.join(self.folder(), f"{len(self._written)}-{Path(wanted).name}")
        self._written[wanted] = place
        return place

    def find(self, path: str | os.PathLike[str]) -> str:
        """Where to read what is asked for as `path`."""
        return self._written.get(os.path.abspath(os.fspath(path)), os.fspath(path))

    def wrote(self, path: str | os.PathLike[str]) -> bool:
        """Whether `path` was written here."""
        return os.path.abspath(os.fspath(path)) in self._written

    def folder(self) -> str:
        """A temporary folder, removed by `clear`."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="ebbtide-")
        return self._folder

    def clear(self) -> None:
        """Remove everything that was written."""
        for place in self._written.values():
            with contextlib.suppress(OSError):
                os.remove(place)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._written.clear()
        self._folder = None


def _is_path(file: Any) -> bool:
    return isinstance(file, str | os.PathLike)


def _save(vgpu: Surface, outbox: Outbox, original: Callable[..., None]) -> Callable[..., None]:
    def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        before = Session.fakes_written
        if not _is_path(f):
            original(obj, f, *args, **options)
        else:
            trial = os.path.join(outbox.folder(), "trial")
            original(obj, trial, *args, **options)
            real = Session.fakes_written == before
            place = os.fspath(f) if real else outbox.place(f)
            shutil.move(trial, place)
        if Session.fakes_written != before:
            vgpu.guess("save", "a checkpoint was saved: with shapes only, and removed at the end")

    return save


def _tagged(map_location: Any, tags: dict[int, torch.device]) -> Callable[..., Any]:
    """A `map_location` that leaves every storage on the host and notes where it belongs."""

    def place(storage: Any, location: str) -> Any:
        tags[storage._cdata] = mapped(location, map_location)
        return storage

    return place


def _move(value: Any, tags: dict[int, torch.device]) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        device = tags.get(value.untyped_storage()._cdata)
        return value.to(device) if device is not None and device.type == "cuda" else value
    if isinstance(value, torch.nn.Module):
        return value.cuda() if any(d.type == "cuda" for d in tags.values()) else value
    if isinstance(value, dict):
        for key in list(value):
            value[key] = _move(value[key], tags)
        return value
    if type(value) in (list, tuple):
        return type(value)(_move(item, tags) for item in value)
    return value


def _load(vgpu: Surface, outbox: Outbox, original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        file = outbox.find(f) if _is_path(f) else f
        if map_location is None and torch.get_default_device().type == "cuda":
            map_location = "cuda"
        tags: dict[int, torch.device] = {}
        Session.map_location = map_location
        place = _tagged(map_location, tags)
        try:
            with torch.serialization.safe_globals([shapes_only_tensor]):
                value = original(file, place, *args, **options)
        finally:
            Session.map_location = None
        return _move(value, tags)

    return load


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Replace `torch.save` and `torch.load`, and safetensors' functions where installed."""
    outbox = Outbox()
    Session.vgpu = vgpu
    patches.on_undo(outbox.clear)
    patches.on_undo(lambda: setattr(Session, "vgpu", None))
    patches.set(FakeTensor, "__reduce_ex__", _reduce)
    patches.everywhere(
        [
            (torch.save, _save(vgpu, outbox, torch.save)),
            (torch.load, _load(vgpu, outbox, torch.load)),
        ]
    )
    with contextlib.suppress(ImportError):
        from ebbtide.vgpu.api import safetensors

        safetensors.install(vgpu, patches, outbox)
