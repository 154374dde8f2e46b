"""State what was found as a plan."""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide.fitting.fingerprint import fingerprint
from ebbtide.fitting.plan import ALLOCATOR, RECOMPUTE, Plan
from ebbtide.fitting.planner import Found, front
from ebbtide.fitting.technique import Technique
from ebbtide.fitting.work import Work
from ebbtide.plan.simulate import simulate
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
        front=front(found.graph),
        where=where,
        model=fingerprint(work.model) if work is not None else "",
        work=work,
    )


def _techniques(found: Found, budget_bytes: int) -> Iterator[Technique]:
    if found.decision.recompute is not None:
        yield _recompute(found, budget_bytes)
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


def _recompute(found: Found, budget_bytes: int) -> Technique:
    graph, choice = found.graph, found.choice
    plain = simulate(graph, graph.droppable).peak_bytes
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
        settings={"keep": keep, "operations": [call.name for call in graph.calls]},
        bytes_saved_at_peak=max(plain - choice.outcome.peak_bytes, 0),
        seconds=choice.outcome.seconds,
        reason=(
            f"Without it the step needs {format_bytes(plain)} of {format_bytes(budget_bytes)}. "
            f"{len(graph.droppable) - len(choice.kept & graph.droppable)} of "
            f"{len(graph.droppable)} saved tensors are made again, {share:.0%} of the forward "
            "pass's matrix arithmetic."
        ),
    )
