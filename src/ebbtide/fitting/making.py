"""State what was found as a plan."""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide.fitting.fingerprint import fingerprint
from ebbtide.fitting.plan import (
    ALLOCATOR,
    IMPLEMENTATION,
    IN_BACKWARD,
    MICRO_BATCHES,
    RECOMPUTE,
    Plan,
)
from ebbtide.fitting.planner import Found, Way, front
from ebbtide.fitting.technique import Technique
from ebbtide.fitting.work import Work
from ebbtide.plan.recompute import Recompute
from ebbtide.units import format_bytes


def made(
    found: Found,
    budget_bytes: int,
    *,
    where: str,
    work: Work | None = None,
) -> Plan:
    """The plan that states what was found."""
    return Plan(
        budget_bytes=budget_bytes,
        fits=found.replay.fits,
        predicted_peak_bytes=found.replay.peak_bytes,
        plain_peak_bytes=found.plain_bytes,
        predicted_step_s=found.seconds,
        techniques=tuple(_techniques(found, budget_bytes)),
        left=tuple(_left(found)),
        front=front([found.ways[0], *([found.way] if found.way is not found.ways[0] else [])]),
        optimality_gap=found.choice.optimality_gap,
        where=where,
        model=fingerprint(work.model) if work is not None else "",
        work=work,
    )


def _techniques(found: Found, budget_bytes: int) -> Iterator[Technique]:
    yield from _of_way(found.way, found.ways[0], "")
    if found.decision.recompute is not None:
        yield _recompute(found, found.decision.recompute, budget_bytes)
    if found.decision.expandable_segments:
        yield Technique(
            name=ALLOCATOR,
            settings={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            bytes_saved_at_peak=0,
            seconds=0.0,
            reason=(
                "The caching allocator's usual segments leave gaps that would not fit the budget; "
                "these have none."
            ),
        )


def _left(found: Found) -> Iterator[Technique]:
    """The ways that were looked at and not taken, each as what it would have been."""
    for way in found.ways[1:]:
        if way.decision == found.way.decision:
            continue
        if way.graph is None:
            yield from _of_way(way, found.ways[0], f"Not possible: {way.reason}")
        elif way.graph.seconds >= found.seconds:
            yield from _of_way(way, found.ways[0], "It would take longer than the plan.")
        else:
            yield from _of_way(
                way, found.ways[0], "With what would have to be recomputed it takes no less time."
            )


def _of_way(way: Way, plain: Way, left: str) -> Iterator[Technique]:
    """The techniques of a way; together they save what the way does, said with the first."""
    saved, seconds = 0, 0.0
    if way.graph is not None and plain.graph is not None:
        saved = plain.peak_bytes - way.peak_bytes
        seconds = way.graph.seconds - plain.graph.seconds
    peak = f"The peak with everything kept goes from {format_bytes(plain.peak_bytes)} to "
    reason = left or f"{peak}{format_bytes(way.peak_bytes)}."
    decision = way.decision
    rows: list[tuple[str, dict[str, object]]] = []
    if decision.micro_batches > 1:
        rows.append((MICRO_BATCHES, {"parts": decision.micro_batches}))
    if decision.implementation is not None:
        rows.append((IMPLEMENTATION, {"implementation": decision.implementation}))
    if decision.optimizer_in_backward:
        rows.append((IN_BACKWARD, {}))
    for name, settings in rows:
        yield Technique(
            name=name,
            settings=settings,
            bytes_saved_at_peak=max(saved, 0),
            seconds=seconds,
            reason=reason,
        )
        saved, seconds, reason = 0, 0.0, f"Together with {name}: see there."


def _recompute(found: Found, recompute: Recompute, budget_bytes: int) -> Technique:
    graph, choice = found.graph, found.choice
    plain = found.way.peak_bytes
    keep = []
    for number in sorted(choice.kept, key=lambda each: graph.storages[each].place or (0, 0)):
        storage = graph.storages[number]
        if storage.place is None:
            continue
        call = graph.calls[storage.place[0]]
        keep.append(
            {
                "operation": storage.place[0],
                "output": storage.place[1],
                "name": call.name,
                "module": call.module,
                "bytes": storage.nbytes,
            }
        )
    flops = sum(call.flops for call in graph.calls)
    share = choice.outcome.flops / flops if flops else 0.0
    return Technique(
        name=RECOMPUTE,
        settings={
            "keep": keep,
            **{
                name: [[*place, at] for place, at in getattr(recompute, name).items()]
                for name in ("holds", "keeps", "lasts")
            },
            "operations": list(recompute.operations),
        },
        bytes_saved_at_peak=max(plain - choice.outcome.peak_bytes, 0),
        seconds=found.recompute_s,
        reason=(
            f"Without it the step needs {format_bytes(plain)} of {format_bytes(budget_bytes)}. "
            f"{len(graph.droppable) - len(choice.kept & graph.droppable)} of "
            f"{len(graph.droppable)} saved tensors are made again, {share:.0%} of the forward "
            "pass's matrix arithmetic."
        ),
    )
