"""Look at a step, choose, try the choice, and choose again with less where it was too much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.errors import DoesNotFitError
from ebbtide.fitting.subject import Replay, Subject
from ebbtide.plan.choose import Choice, choose
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.recompute import Recompute
from ebbtide.plan.simulate import simulate
from ebbtide.units import format_bytes

# What was chosen may need a little more than it was simulated with: kernels allocate inside,
# and the caching allocator leaves gaps.
_TRIES = 8
_STEP_BACK = 0.01
_POINTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A choice that has been tried.

    Attributes:
        graph: the step it is for.
        choice: what to keep.
        recompute: the same for the runtime; None where everything is kept.
        replay: what a step came to.
        plain_bytes: the peak without any plan.
    """

    graph: StepGraph
    choice: Choice
    recompute: Recompute | None
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


def find_plan(subject: Subject, budget_bytes: int) -> Found:
    """What fits `budget_bytes` with the least computed again.

    Raises:
        DoesNotFitError: nothing does; the message says how much would.
    """
    graph = subject.survey()
    everything = graph.droppable
    plain = Choice(everything, simulate(graph, everything))
    if plain.outcome.peak_bytes <= budget_bytes:
        replay = subject.replay(None, budget_bytes)
        if replay.fits:
            return Found(
                graph=graph,
                choice=plain,
                recompute=None,
                replay=replay,
                plain_bytes=replay.peak_bytes,
            )
    aim = budget_bytes
    for _ in range(_TRIES):
        choice = choose(graph, aim)
        if choice is None:
            break
        recompute = Recompute.of(graph, choice.kept)
        replay = subject.replay(recompute, budget_bytes)
        if replay.fits:
            return Found(
                graph=graph,
                choice=choice,
                recompute=recompute,
                replay=replay,
                plain_bytes=plain.outcome.peak_bytes,
            )
        over = replay.peak_bytes - budget_bytes
        aim = min(aim, choice.outcome.peak_bytes) - max(over, round(budget_bytes * _STEP_BACK))
    raise DoesNotFitError(_nothing(graph, budget_bytes))


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
            f"Parameters, buffers, optimizer state and inputs take {format_bytes(graph.base_bytes)} "
            f"alone, more than the budget of {format_bytes(budget_bytes)}. Recomputing activations "
            "cannot help; what would are fewer or smaller parameters, or an optimizer with less "
            "state."
        )
    return (
        f"The smallest budget that recomputing activations reaches is about "
        f"{format_bytes(smallest_bytes(graph))}, of which {format_bytes(graph.base_bytes)} are "
        f"parameters, buffers, optimizer state and inputs; the budget is "
        f"{format_bytes(budget_bytes)}. Give it more, or a smaller batch."
    )
