"""One workload at any batch size, from traces at two or three.

Where the same operations and allocations happen in the same order at each traced
batch, only sizes differ, and a trace at any other batch is made by arithmetic: the
allocator can then be replayed for it, so that reserved memory is exact and not
interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebbtide.errors import EbbtideError
from ebbtide.prediction.aligning import beginnings, with_equal_rows, without_syncs
from ebbtide.prediction.growth import Growth
from ebbtide.trace.model import Event, Guess, Ints, Trace


class DoNotAlignError(EbbtideError):
    """Traces at different batch sizes do different things; the message says where they part.

    The caller traces each batch size that it wants to know instead.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Requested bytes of each allocation at one batch size."""

    likely: Ints
    low: Ints
    high: Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One workload at any batch size.

    Attributes:
        trace: the trace at the first batch; its order of events holds for all. Workspaces
            that it does not have, but another, are rows of 0 bytes.
        likely, low, high: bytes of each allocation.
        flops, moved_bytes: of each operation.
        cut: whether the traces' ends were left out, because they do different things there.
    """

    trace: Trace
    likely: Growth
    low: Growth
    high: Growth
    flops: Growth
    moved_bytes: Growth
    cut: bool = False

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that were traced, ascending."""
        return self.likely.batches

    def sizes(self, batch: int) -> Sizes | None:
        """Requested bytes at `batch`; None where they are beyond any GPU."""
        columns = [growth.at(batch) for growth in (self.low, self.likely, self.high)]
        if any(column is None for column in columns):
            return None
        low, likely, high = (column for column in columns if column is not None)
        # Rounding a bent row may cross by a byte; the order is part of what a range means.
        return Sizes(likely=likely, low=np.minimum(low, likely), high=np.maximum(high, likely))

    def guesses(self) -> tuple[Guess, ...]:
        """What the curve assumes beyond the traces."""
        found = []
        bent = len(self.likely.bent)
        listed = ", ".join(map(str, self.batches))
        if self.cut:
            found.append(
                Guess(
                    kind="curve-cut",
                    text="The curve is of what comes up to the peak; after it the traces at batch "
                    f"{listed} do different things.",
                    count=1,
                )
            )
        if bent:
            found.append(
                Guess(
                    kind="curve-bent",
                    text="Some allocations do not grow evenly with the batch: what they are "
                    f"between and beyond the traced batches ({listed}) is drawn through those.",
                    count=bent,
                )
            )
        elif len(self.batches) == 2:
            found.append(
                Guess(
                    kind="curve-unchecked",
                    text=f"The curve assumes that every allocation is affine in the batch, from "
                    f"traces at batch {self.batches[0]} and {self.batches[1]}.",
                    count=1,
                )
            )
        return tuple(found)


def family(traces: Mapping[int, Trace]) -> Family:
    """One workload at any batch size.

    Args:
        traces: two or three traces of it, by batch size.

    Raises:
        DoNotAlignError: the traces do different things.
        ValueError: not two or three traces.
    """
    if len(traces) not in (2, 3):
        raise ValueError(f"family: expected traces at 2 or 3 batch sizes, got {len(traces)}")
    batches = tuple(sorted(traces))
    whole = [traces[batch] for batch in batches]
    ordered, cut = _comparable(whole)
    for batch, other in zip(batches[1:], ordered[1:], strict=True):
        where = first_difference(ordered[0], other)
        if where is not None:
            raise DoNotAlignError(
                f"The traces at batch {batches[0]} and {batch} do different things: {where}. "
                "Each batch size has to be traced by itself."
            )

    def growth(columns: list[Ints]) -> Growth:
        return Growth(batches=batches, values=tuple(columns))

    return Family(
        trace=ordered[0],
        likely=growth([trace.allocs.likely_bytes for trace in ordered]),
        low=growth([trace.allocs.low_bytes for trace in ordered]),
        high=growth([trace.allocs.high_bytes for trace in ordered]),
        flops=growth([trace.ops.flops for trace in ordered]),
        moved_bytes=growth([trace.ops.moved_bytes for trace in ordered]),
        cut=cut,
    )


def _comparable(traces: list[Trace]) -> tuple[list[Trace], bool]:
    """The traces as similar as they can be made, and whether their ends were cut off."""
    if _alike(traces):
        return traces, False
    quiet = [without_syncs(trace) for trace in traces]
    for candidates in (traces, quiet):
        equal = with_equal_rows(candidates)
        if _alike(equal):
            return equal, False
    begun = beginnings(quiet)
    return (with_equal_rows(begun), True) if begun is not None else (traces, False)


def _alike(traces: list[Trace]) -> bool:
    return all(first_difference(traces[0], other) is None for other in traces[1:])


def first_difference(one: Trace, other: Trace) -> str | None:
    """Where two traces first do different things; None where only sizes and costs differ."""
    names = [np.asarray(trace.names, object)[trace.ops.name] for trace in (one, other)]
    if (at := _first(names[0], names[1])) is not None:
        return (
            f"operation {at} is {_item(names[0], at)} in one and {_item(names[1], at)} in the other"
        )
    pairs = {
        "category": (one.allocs.category, other.allocs.category),
        "operation": (one.allocs.op, other.allocs.op),
        "stream": (one.allocs.stream, other.allocs.stream),
    }
    for what, (left, right) in pairs.items():
        if (at := _first(left, right)) is not None:
            return f"allocation {at} has another {what}, or is missing"
    events = (
        _first(one.event_kind, other.event_kind),
        _first(_arguments(one), _arguments(other)),
        _first(one.event_extra, other.event_extra),
    )
    at = next((at for at in events if at is not None), None)
    return None if at is None else f"event {at} is another, or is missing"


def _arguments(trace: Trace) -> Ints:
    """The events' arguments, those of frees without anything between them in ascending order.

    The allocator ends in the same state whatever their order is, and it may differ
    from run to run: autocast drops its cache in the order of a hash table.
    """
    frees = np.flatnonzero(trace.event_kind == Event.FREE)
    stretch = np.cumsum(trace.event_kind != Event.FREE)[frees]
    arguments = trace.event_arg.copy()
    arguments[frees] = arguments[frees][np.lexsort((arguments[frees], stretch))]
    return arguments


def _first(left: npt.NDArray[np.generic], right: npt.NDArray[np.generic]) -> int | None:
    """The first index at which the columns differ, their shorter length where one goes on."""
    shared = min(len(left), len(right))
    differing = np.flatnonzero(left[:shared] != right[:shared])
    if len(differing):
        return int(differing[0])
    return shared if len(left) != len(right) else None


def _item(names: npt.NDArray[np.object_], at: int) -> str:
    return str(names[at]) if at < len(names) else "missing"
