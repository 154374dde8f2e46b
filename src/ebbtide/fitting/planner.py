"""Look at a step, choose, try the choice, and choose again with less where it was too much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ebbtide.errors import DoesNotFitError
from ebbtide.fitting.subject import Replay, Subject
from ebbtide.plan.choose import Choice, choose
from ebbtide.plan.decision import Decision
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.recompute import Recompute
from ebbtide.plan.simulate import simulate
from ebbtide.units import format_bytes

# What was chosen may need a little more than it was simulated with: kernels allocate inside,
# and the caching allocator leaves gaps. Then the next one aims lower by this share, twice it...
_STEP_BACK = 0.01
_TRIES = 7
# Between what fits and what does not there may be something better.
_REFINEMENTS = 2
_POINTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A choice that has been tried.

    Attributes:
        graph: the step it is for.
        choice: what to keep.
        decision: the same for the runtime, with what else is done.
        replay: what a step came to.
        plain_bytes: the peak without any plan.
    """

    graph: StepGraph
    choice: Choice
    decision: Decision
    replay: Replay
    plain_bytes: int

    @property
    def seconds(self) -> float:
        """Predicted time of a step."""
        return self.graph.seconds + self.choice.outcome.seconds


@dataclass(frozen=True, slots=True)
class Point:
    """A budget that can be had, and the step time it costs."""

    peak_bytes: int
    step_s: float


def find_plan(
    subject: Subject, budget_bytes: int, progress: Callable[[str], object] = lambda text: None
) -> Found:
    """What fits `budget_bytes` with the least computed again.

    Args:
        subject: takes the steps.
        budget_bytes: for the peak.
        progress: told what is being done: ``"choosing"``, ``"trying"``.

    Raises:
        DoesNotFitError: nothing does; the message says how much would.
    """
    graph = subject.survey()
    everything = Choice(graph.droppable, simulate(graph, graph.droppable))

    def tried(aim: float) -> Found | float:
        """What fits, or by how much it does not."""
        progress("choosing")
        choice = choose(graph, int(aim))
        if choice is None:
            return math.inf
        progress("trying")
        for decision in _decisions(graph, choice, subject.gaps):
            replay = subject.replay(decision, budget_bytes)
            if replay.fits:
                return Found(
                    graph=graph,
                    choice=choice,
                    decision=decision,
                    replay=replay,
                    plain_bytes=everything.outcome.peak_bytes,
                )
        return replay.peak_bytes - budget_bytes

    best, aim, failed = None, float(budget_bytes), math.inf
    for attempt in range(_TRIES):
        found = tried(aim)
        if isinstance(found, Found):
            best = found
            break
        if found == math.inf:
            break
        failed = aim
        aim -= max(found, budget_bytes * _STEP_BACK * 2**attempt)
    if best is None:
        raise DoesNotFitError(_nothing(graph, budget_bytes))
    for _ in range(_REFINEMENTS if failed < math.inf else 0):
        middle = (aim + failed) / 2
        found = tried(middle)
        if isinstance(found, Found):
            best, aim = min(best, found, key=lambda each: each.seconds), middle
        else:
            failed = middle
    return best


def _decisions(graph: StepGraph, choice: Choice, gaps: bool) -> Iterator[Decision]:
    """How to keep what was chosen, the simplest first."""
    whole = choice.kept >= graph.droppable
    recompute = None if whole else Recompute.of(graph, choice.kept)
    yield Decision(recompute=recompute)
    if gaps:
        yield Decision(recompute=recompute, expandable_segments=True)


def smallest_bytes(graph: StepGraph) -> int:
    """The lowest peak that was found by halving."""
    high = simulate(graph, graph.droppable).peak_bytes
    low = graph.base_bytes
    while high - low > max(high // 200, 512):
        middle = (low + high) // 2
        if choose(graph, middle) is None:
            low = middle
        else:
            high = middle
    return high


def front(graph: StepGraph, points: int = _POINTS) -> tuple[Point, ...]:
    """Budgets between the least and what everything kept takes, with their step times."""
    most = simulate(graph, graph.droppable).peak_bytes
    least = smallest_bytes(graph)
    found: list[Point] = []
    for i in range(points):
        choice = choose(graph, least + (most - least) * i // max(points - 1, 1))
        if choice is None:
            continue
        point = Point(choice.outcome.peak_bytes, graph.seconds + choice.outcome.seconds)
        if not found or point.step_s < found[-1].step_s:
            found.append(point)
    return tuple(found)


def least_step(points: Sequence[Point]) -> float:
    """The time of the fastest."""
    return min(point.step_s for point in points)


def _nothing(graph: StepGraph, budget_bytes: int) -> str:
    if graph.base_bytes > budget_bytes:
        return (
            "Parameters, buffers, optimizer state and inputs take "
            f"{format_bytes(graph.base_bytes)} alone, more than the budget of "
            f"{format_bytes(budget_bytes)}. Recomputing activations cannot help; what would are "
            "fewer or smaller parameters, or an optimizer with less state."
        )
    least = smallest_bytes(graph)
    gaps = "" if least > budget_bytes else " The caching allocator leaves gaps beside that."
    return (
        f"Recomputing activations brings the peak down to about {format_bytes(least)}, of which "
        f"{format_bytes(graph.base_bytes)} are parameters, buffers, optimizer state and inputs; "
        f"the budget is {format_bytes(budget_bytes)}.{gaps} Give it more, or a smaller batch."
    )
