"""Snapshots made by the reference allocator: what torch would have recorded of it."""

from __future__ import annotations

from typing import Any

from reference_allocator import NoMemory, ReferenceAllocator


class Recording:
    """The reference allocator with a record of everything, in torch's format."""

    def __init__(self, capacity: int | None = None, **settings: Any) -> None:
        self.allocator = ReferenceAllocator(capacity, **settings)
        self.events: list[dict[str, Any]] = []
        # After each event: allocated and reserved bytes. The first: before all events.
        self.figures: list[tuple[int, int]] = [(0, 0)]
        self.requested: dict[int, tuple[int, int]] = {}

    def note(self, action: str, address: int, size: int, stream: int) -> None:
        place = "device_free" if action == "oom" else "addr"
        self.events.append(
            {
                "action": action,
                place: address,
                "size": size,
                "stream": stream,
                "time_us": len(self.events),
                "frames": [{"name": "step", "filename": "train.py", "line": 7}],
            }
        )
        self.figures.append(self.figures[-1])

    def settle(self) -> None:
        self.figures[-1] = (self.allocator.allocated, self.allocator.reserved)

    def compare(self, before: dict[int, Any], stream: int, after: dict[int, Any]) -> None:
        """Note what went to and came from the driver between two states, in torch's order."""
        gone = [s for a, s in before.items() if a not in after]
        gone.sort(key=lambda s: (s.small, s.stream, s.size, s.born))
        reserved = sum(s.size for s in before.values())
        allocated = self.figures[-1][0]
        for segment in gone:
            self.note("segment_free", segment.address, segment.size, segment.stream)
            reserved -= segment.size
            self.figures[-1] = (allocated, reserved)
        for address, segment in after.items():
            if address not in before:
                self.note("segment_alloc", address, segment.size, segment.stream)
                reserved += segment.size
                self.figures[-1] = (allocated, reserved)

    def segments(self) -> dict[int, Any]:
        return {s.address: s for s in self.allocator.segments}

    def malloc(self, nbytes: int, stream: int = 0) -> int | None:
        before = self.segments()
        try:
            address = self.allocator.malloc(nbytes, stream)
        except NoMemory:
            self.compare(before, stream, self.segments())
            self.note("oom", 0, self.allocator.rounded(nbytes), stream)
            return None
        self.compare(before, stream, self.segments())
        self.note("alloc", address, nbytes, stream)
        self.settle()
        self.requested[address] = (nbytes, stream)
        return address

    def free(self, address: int) -> None:
        nbytes, stream = self.requested.pop(address)
        self.allocator.free(address)
        self.note("free_requested", address, nbytes, stream)
        self.settle()
        self.note("free_completed", address, nbytes, stream)

    def empty_cache(self) -> None:
        before = self.segments()
        self.allocator.empty_cache()
        self.compare(before, 0, self.segments())

    def snapshot(self, keep: int | None = None, **settings: Any) -> dict[str, Any]:
        """The snapshot now, with the last `keep` events."""
        events = self.events if keep is None else self.events[len(self.events) - keep :]
        divisions = {str(1 << i): self.allocator.divisions for i in range(16)}
        limit = self.allocator.max_split
        return {
            "segments": [self.segment(s) for s in self.allocator.segments],
            "device_traces": [events],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": -1 if limit is None else limit,
                "expandable_segments": False,
                "roundup_power2_divisions": divisions,
                **settings,
            },
            "external_annotations": [],
        }

    def segment(self, s: Any) -> dict[str, Any]:
        used = [p for p in s.pieces if p[2] is not None]
        return {
            "device": 0,
            "address": s.address,
            "total_size": s.size,
            "allocated_size": sum(p[1] for p in used),
            "active_size": sum(p[1] for p in used),
            "requested_size": sum(p[2] for p in used),
            "stream": s.stream,
            "segment_type": "small" if s.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {
                    "address": address,
                    "size": size,
                    "requested_size": requested or 0,
                    "state": "inactive" if requested is None else "active_allocated",
                    "frames": [],
                }
                for address, size, requested in s.pieces
            ],
        }

    def peaks(self, keep: int | None = None) -> tuple[int, int]:
        """The most allocated and reserved while the last `keep` events happened."""
        window = self.figures if keep is None else self.figures[len(self.events) - keep :]
        return max(f[0] for f in window), max(f[1] for f in window)
