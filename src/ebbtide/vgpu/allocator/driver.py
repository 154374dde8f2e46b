"""Where segments come from: the driver as the allocator sees it."""

from __future__ import annotations

from typing import Protocol

from ebbtide.units import MiB

BASE_ADDRESS = 0x7F00_0000_0000
"""Where the addresses of a modelled device begin; any would do."""


class Driver(Protocol):
    """What the allocator asks of the driver. ``None`` and ``False`` mean: no memory."""

    def malloc(self, size: int, stream: int) -> int | None:
        """`cudaMalloc`: the address of `size` new bytes."""

    def free(self, address: int, size: int) -> None:
        """`cudaFree` of a whole segment."""

    def reserve(self, size: int | None, page: int) -> tuple[int, int]:
        """`cuMemAddressReserve`: base and size of a stretch of addresses without memory."""

    def unreserve(self, base: int, size: int) -> None:
        """`cuMemAddressFree`."""

    def map(self, address: int, size: int) -> bool:
        """`cuMemCreate` and `cuMemMap` of whole pages: all of them or none."""

    def unmap(self, address: int, size: int) -> None:
        """`cuMemUnmap` of whole pages."""


class VirtualDriver:
    """A driver of a device with so much memory that gives out rising addresses.

    Real drivers choose addresses by rules of their own, so that of two equally
    good free blocks a real device may take the other one.

    Args:
        capacity: bytes that can be had, None for no limit.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.used = 0
        self._next = BASE_ADDRESS

    @property
    def free_bytes(self) -> int | None:
        """Bytes that can still be had; None where there is no limit."""
        return None if self.capacity is None else max(0, self.capacity - self.used)

    def _take(self, size: int) -> bool:
        if self.capacity is not None and self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def malloc(self, size: int, stream: int) -> int | None:
        """See `Driver.malloc`."""
        return self._addresses(size) if self._take(size) else None

    def free(self, address: int, size: int) -> None:
        """See `Driver.free`."""
        self.used -= size

    def _addresses(self, size: int) -> int:
        address = self._next
        self._next += -(-size // (2 * MiB)) * 2 * MiB
        return address

    def reserve(self, size: int | None, page: int) -> tuple[int, int]:
        """See `Driver.reserve`; torch asks for 1 1/8 of the device's memory."""
        wanted = 1 << 44 if size is None else size
        wanted = -(-wanted // page) * page
        return self._addresses(wanted), wanted

    def unreserve(self, base: int, size: int) -> None:
        """See `Driver.unreserve`: addresses are never given out again."""

    def map(self, address: int, size: int) -> bool:
        """See `Driver.map`."""
        return self._take(size)

    def unmap(self, address: int, size: int) -> None:
        """See `Driver.unmap`."""
        self.used -= size
