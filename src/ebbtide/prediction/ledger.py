"""The ledger: every byte of a process at one event, in lines that add up."""

from __future__ import annotations

from ebbtide.prediction.alive import by_category
from ebbtide.prediction.parts import PARTS
from ebbtide.trace.model import Ints, Trace


def ledger_at(
    trace: Trace,
    event: int,
    sizes: Ints,
    *,
    allocated_bytes: int,
    reserved_bytes: int,
    context_bytes: int,
) -> dict[str, int]:
    """The ledger at `event`; its lines add up to ``reserved_bytes + context_bytes``.

    Args:
        trace: what was recorded.
        event: index of an event of it.
        sizes: requested bytes of each row of `trace.allocs`.
        allocated_bytes: allocated at `event`.
        reserved_bytes: reserved at `event`.
        context_bytes: the CUDA context.

    Returns:
        Bytes for each name of `PARTS`. ``rounding`` is what the allocator adds to
        requests (512 B blocks, and rests too small to split off);
        ``cached/fragmentation`` is reserved and not allocated.
    """
    lines = by_category(trace, event, sizes)
    lines["rounding"] = allocated_bytes - sum(lines.values())
    lines["cached/fragmentation"] = reserved_bytes - allocated_bytes
    lines["CUDA context"] = context_bytes
    return {name: lines[name] for name in PARTS}
