"""Follow the storages of fake `cuda` tensors: when one appears and when it dies.

A storage is one allocation of the virtual GPU. PyTorch keeps the Python object
of a storage alive as long as the storage itself, so a weak reference to it is
told of the death at the very moment at which CUDA memory would be freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ebbtide.vgpu.tape import UNKNOWN, Tape

Key = int | tuple[int, int]
"""A storage's address; of a part of a sparse tensor, the tensor's address and the part."""


class _StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A reference to a live storage that knows its address, its size and its row."""

    __slots__ = ("bytes", "key", "row")

    key: Key
    bytes: int
    row: int


class Storages:
    """The live storages of one virtual GPU, each with its row in the tape.

    Args:
        tape: where allocations and frees are written.
        after_alloc: called after each allocation, so that a limit can be held.

    Attributes:
        live_bytes, peak_bytes: of the tensors themselves, without workspaces or rounding.
    """

    def __init__(self, tape: Tape, after_alloc: Callable[[], None] | None = None) -> None:
        self.tape = tape
        self.after_alloc = after_alloc
        self.live_bytes = self.peak_bytes = 0
        self._live: dict[Key, _StorageRef] = {}
        self._emptied: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._heirloom: _StorageRef | None = None

    def add(self, tensor: torch.Tensor) -> None:
        """Note the storage of `tensor` if it is new or has been resized; of a sparse one, each."""
        if tensor.layout is not torch.strided:
            self._add_sparse(tensor)
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._live.get(key)
        nbytes = storage.nbytes()
        if known is not None:
            if known.bytes == nbytes:
                return
            self._drop(known)
        if nbytes:
            self._insert(storage, key, nbytes)

    def _add_sparse(self, tensor: torch.Tensor) -> None:
        for number, part in enumerate(_parts(tensor)):
            key = (tensor._cdata, number)
            known = part.untyped_storage()._cdata in self._live or key in self._live
            if not known and part.numel():
                # The parts of what a shape rule made are shown as new tensors each time.
                self._insert(tensor, key, part.numel() * part.dtype.itemsize)

    def add_new(
        self,
        tensor: torch.Tensor,
        nbytes: int,
        span: tuple[int, int] | None = None,
        category: int = UNKNOWN,
    ) -> None:
        """Note the storage of a tensor that is known to own a fresh one.

        Args:
            tensor: its owner.
            nbytes: its size.
            span: least and most bytes it may have, where its size is a library's choice.
            category: what it is for, if that is known.
        """
        storage = tensor.untyped_storage()
        self._insert(storage, storage._cdata, nbytes, span, category)

    def add_without_memory(self, tensor: torch.Tensor) -> None:
        """Note a fresh storage that takes none of the GPU's memory, whatever its size."""
        storage = tensor.untyped_storage()
        self._insert(storage, storage._cdata, 0)
        self._live[storage._cdata].bytes = storage.nbytes()
        self.live_bytes += storage.nbytes()

    @contextmanager
    def handed_over(self, tensor: torch.Tensor) -> Iterator[None]:
        """The next fresh storage of the same size takes over the memory of `tensor`.

        `tensor` must not be used afterwards.
        """
        known = self._live.pop(tensor.untyped_storage()._cdata, None)
        self._heirloom = known
        try:
            yield
        finally:
            if self._heirloom is not None:
                self._live[self._heirloom.key] = self._heirloom
                self._heirloom = None

    def _insert(
        self,
        storage: Any,
        key: Key,
        nbytes: int,
        span: tuple[int, int] | None = None,
        category: int = UNKNOWN,
    ) -> None:
        reference = _StorageRef(storage, self._drop)
        reference.key, reference.bytes = key, nbytes
        heirloom = self._heirloom
        if heirloom is not None and heirloom.bytes == nbytes:
            self._heirloom = None
            reference.row = heirloom.row
            self._live[key] = reference
            return
        low, high = span or (nbytes, nbytes)
        reference.row = self.tape.alloc(nbytes, low, high, category)
        self._live[key] = reference
        self.live_bytes += nbytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
        if self.after_alloc is not None:
            self.after_alloc()

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Note that a storage has another size now; one of size zero holds no memory."""
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            self._drop(known)
        elif self._emptied.pop(key, None) is None:
            return  # not one of this GPU
        if storage.nbytes():
            self._insert(storage, key, storage.nbytes())
        else:
            self._emptied[key] = weakref.ref(storage, lambda _: self._emptied.pop(key, None))

    def _drop(self, reference: _StorageRef) -> None:
        if self._live.get(reference.key) is reference:
            del self._live[reference.key]
            self.live_bytes -= reference.bytes
            self.tape.free(reference.row)

    def row_of(self, tensor: torch.Tensor) -> int | None:
        """Row of the allocation that holds `tensor`, or None if it has no memory here."""
        return next(iter(self.rows_of(tensor)), None)

    def rows_of(self, tensor: torch.Tensor) -> list[int]:
        """Rows of what holds `tensor`: one, none, or those of a sparse tensor's parts."""
        keys: list[Key] = []
        if tensor.layout is torch.strided:
            keys.append(tensor.untyped_storage()._cdata)
        else:
            for number, part in enumerate(_parts(tensor)):
                keys += [part.untyped_storage()._cdata, (tensor._cdata, number)]
        return [self._live[key].row for key in keys if key in self._live]

    def live_rows(self) -> list[int]:
        """Rows of everything that is allocated now."""
        return [reference.row for reference in self._live.values()]


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a sparse one consists of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    compressed = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    if compressed:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
