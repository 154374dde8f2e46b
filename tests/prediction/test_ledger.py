from __future__ import annotations

from hypothesis import given
from tests.prediction.builder import Builder
from tests.prediction.test_alive import MOVES, random_trace

from ebbtide.prediction.ledger import ledger_at
from ebbtide.prediction.parts import PARTS
from ebbtide.prediction.replaying import history
from ebbtide.trace.model import Category
from ebbtide.units import MiB


@given(MOVES)
def test_adds_up_to_the_byte_at_every_event(moves: list[tuple[int, int, int]]) -> None:
    trace = random_trace(moves)
    sizes = trace.allocs.likely_bytes
    run = history(trace, sizes)
    for event in range(len(trace.event_kind)):
        lines = ledger_at(
            trace,
            event,
            sizes,
            allocated_bytes=int(run.allocated[event]),
            reserved_bytes=int(run.reserved[event]),
            context_bytes=12_345,
        )
        assert tuple(lines) == PARTS
        assert sum(lines.values()) == run.reserved[event] + 12_345
        assert min(lines.values()) >= 0


def test_known_bytes() -> None:
    b = Builder()
    b.alloc(1000, Category.PARAMETER, op=-1)
    b.alloc(3 * MiB, Category.KV_CACHE, op=-1)
    trace = b.build()
    lines = ledger_at(
        trace,
        1,
        trace.allocs.likely_bytes,
        allocated_bytes=1024 + 3 * MiB,
        reserved_bytes=22 * MiB,
        context_bytes=5,
    )
    assert {name: size for name, size in lines.items() if size} == {
        "parameters": 1000,
        "KV cache": 3 * MiB,
        "rounding": 24,
        "cached/fragmentation": 19 * MiB - 1024,
        "CUDA context": 5,
    }
