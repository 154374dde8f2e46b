"""The driver of a record: it gives out the addresses that the record has."""

from __future__ import annotations

from collections import deque

from ebbtide.trace.snapshot_heap import UNKNOWN_SPACE
from ebbtide.trace.snapshot_types import Action, TraceEntry

_INVENTED = 1 << 62  # where segments lie that the record does not have


class RecordedDriver:
    """A driver that gives out the recorded addresses.

    Addresses are no decision of the allocator's: that it takes memory at this request,
    and how much, is what the model has to find.

    Attributes:
        due: what the record takes from the driver at the request underway.
        same: how often the model took just that.
    """

    def __init__(self) -> None:
        self.due: deque[TraceEntry] = deque()
        self.same = 0
        self._next = _INVENTED

    def _invent(self, size: int) -> int:
        address = self._next
        self._next += size
        return address

    def malloc(self, size: int, stream: int) -> int | None:
        """See `Driver.malloc`. There always is memory: the record says when there was none."""
        if self.due and self.due[0].action is Action.SEGMENT_ALLOC:
            entry = self.due.popleft()
            if entry.size == size and entry.stream == stream:
                self.same += 1
                return entry.address
        return self._invent(size)

    def free(self, address: int, size: int) -> None:
        """See `Driver.free`."""

    def reserve(self, size: int | None, page: int) -> tuple[int, int]:
        """See `Driver.reserve`."""
        space = UNKNOWN_SPACE // page * page
        if self.due and self.due[0].action is Action.SEGMENT_MAP:
            return self.due[0].address, space
        return self._invent(space), space

    def unreserve(self, base: int, size: int) -> None:
        """See `Driver.unreserve`."""

    def map(self, address: int, size: int) -> bool:
        """See `Driver.map`."""
        if self.due and self.due[0].action is Action.SEGMENT_MAP:
            entry = self.due.popleft()
            if (entry.address, entry.size) == (address, size):
                self.same += 1
        return True

    def unmap(self, address: int, size: int) -> None:
        """See `Driver.unmap`."""
