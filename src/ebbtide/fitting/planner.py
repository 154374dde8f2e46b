"""Look at steps, choose, try the choice, and choose again with less where it was too much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ebbtide.errors import DoesNotFitError, EbbtideError
from ebbtide.fitting.subject import Replay, Subject
from ebbtide.plan.choose import Choice, choose, smallest
from ebbtide.plan.choose import front as front_of
from ebbtide.plan.decision import PLAIN, Decision
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
_POINTS = 6
# How many choices are played for the plan.
_EFFORT = 2000
# Fewer choices are played for a point of the front than for the plan.
_FRONT = 150
_MOST_PARTS = 64
# A way that is so far below the budget with everything kept needs no smaller parts.
_MARGIN = 0.1
# By how much another way has to be quicker: predictions are no better, and timings differ.
_WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """A way to take the step before anything is recomputed.

    Attributes:
        decision: what is done.
        graph: the step then; None where it cannot be taken so.
        peak_bytes: of it with everything kept.
        reason: why it cannot be taken so.
    """

    decision: Decision
    graph: StepGraph | None
    peak_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A choice that has been tried.

    Attributes:
        way: how the step is taken.
        choice: what it keeps.
        decision: all of it, for the runtime.
        replay: what a step came to.
        ways: all that were looked at; the first is the plain one.
    """

    way: Way
    choice: Choice
    decision: Decision
    replay: Replay
    ways: tuple[Way, ...]

    @property
    def graph(self) -> StepGraph:
        """The step."""
        return _graph(self.way)

    @property
    def recompute_s(self) -> float:
        """Seconds a step spends on computing again."""
        return self.choice.outcome.seconds * self.way.decision.micro_batches

    @property
    def seconds(self) -> float:
        """Predicted time of a step."""
        return self.graph.seconds + self.recompute_s

    @property
    def plain_bytes(self) -> int:
        """The peak of the step as it is."""
        return self.ways[0].peak_bytes


@dataclass(frozen=True, slots=True)
class Point:
    """A budget that can be had, and the step time it costs."""

    peak_bytes: int
    step_s: float


def find_plan(
    subject: Subject,
    budget_bytes: int,
    progress: Callable[[str], object] = lambda text: None,
    *,
    exact: bool = False,
) -> Found:
    """What fits `budget_bytes` in the least time.

    Args:
        subject: takes the steps.
        budget_bytes: for the peak.
        exact: whether every bit has to be that of the plain step.
        progress: told what is being done: ``"surveying"``, ``"choosing"``, ``"trying"``.

    Raises:
        DoesNotFitError: nothing does; the message says how much would.
    """
    search = _Search(subject, budget_bytes, progress, exact)
    best, aim, failed = None, float(budget_bytes), math.inf
    for attempt in range(_TRIES):
        found = search.tried(aim)
        if isinstance(found, Found):
            best = found
            break
        if found == math.inf:
            break
        failed = aim
        aim -= max(found, budget_bytes * _STEP_BACK * 2**attempt)
    if best is None:
        raise DoesNotFitError(_nothing(search.ways, budget_bytes))
    for _ in range(_REFINEMENTS if failed < math.inf else 0):
        middle = (aim + failed) / 2
        found = search.tried(middle)
        if isinstance(found, Found):
            best, aim = min(best, found, key=lambda each: each.seconds), middle
        else:
            failed = middle
    return replace(best, ways=tuple(search.ways))


class _Search:
    """Ways that have been looked at, as far as they were needed."""

    def __init__(
        self,
        subject: Subject,
        budget_bytes: int,
        progress: Callable[[str], object],
        exact: bool,
    ) -> None:
        self.subject, self.budget_bytes, self.progress = subject, budget_bytes, progress
        self.exact = exact
        self.ways = [self._way(PLAIN)]
        self._waiting = self._others()

    def tried(self, aim: float) -> Found | float:
        """What fits with a peak of at most `aim` bytes, or by how much it is over the budget."""
        chosen = self._chosen(aim)
        if chosen is None:
            return math.inf
        way, choice = chosen
        self.progress("trying")
        for decision in _decisions(way, choice, self.subject.virtual):
            replay = self.subject.replay(decision, self.budget_bytes)
            if replay.fits:
                return Found(way=way, choice=choice, decision=decision, replay=replay, ways=())
        return replay.peak_bytes - self.budget_bytes

    def _chosen(self, aim: float) -> tuple[Way, Choice] | None:
        """The quickest choice of all ways; others than the plain one where that recomputes."""
        best: tuple[float, Way, Choice] | None = None
        position = 0
        while True:
            if position == len(self.ways):
                enough = best is not None and not best[2].outcome.calls
                decision = None if enough else next(self._waiting, None)
                if decision is None:
                    break
                self.ways.append(self._way(decision))
            way = self.ways[position]
            position += 1
            if way.graph is None or (best is not None and not self._may_beat(way, best[0])):
                continue
            self.progress("choosing")
            choice = choose(way.graph, int(aim), effort=_EFFORT)
            if choice is None:
                continue
            seconds = way.graph.seconds + choice.outcome.seconds * way.decision.micro_batches
            if best is None or seconds < best[0] * (1 - _WORTH):
                best = seconds, way, choice
        return None if best is None else (best[1], best[2])

    def _may_beat(self, way: Way, seconds: float) -> bool:
        """Whether `way` may be quicker; times of a real device differ without a reason."""
        lower = way.peak_bytes < self.ways[0].peak_bytes * (1 - _WORTH)
        return (self.subject.virtual or lower) and _graph(way).seconds < seconds

    def _way(self, decision: Decision) -> Way:
        self.progress("surveying")
        try:
            graph = self.subject.survey(decision)
        except EbbtideError as error:
            if decision == PLAIN:
                raise
            return Way(decision, None, reason=str(error))
        return Way(decision, graph, simulate(graph, graph.droppable).peak_bytes)

    def _others(self) -> Iterator[Decision]:
        """Other ways, as long as they help: the cheap ones first."""
        if not self.subject.steps:
            return
        yield Decision(optimizer_in_backward=True)
        if self.exact:
            return
        if self.subject.virtual:  # on a GPU
            yield Decision(implementation="fused")
        parts, before = 2, self.ways[0].peak_bytes
        while parts <= min(self.subject.batch_size, _MOST_PARTS):
            yield Decision(micro_batches=parts)
            last = self.ways[-1]
            if last.graph is None or last.peak_bytes <= self.budget_bytes * (1 - _MARGIN):
                return
            if last.peak_bytes > before * (1 - _MARGIN):  # gradients are what is left
                yield Decision(micro_batches=parts, optimizer_in_backward=True)
                return
            parts, before = 2 * parts, last.peak_bytes


def _decisions(way: Way, choice: Choice, gaps: bool) -> Iterator[Decision]:
    """How to keep what was chosen, the simplest first."""
    graph = _graph(way)
    whole = choice.kept >= graph.droppable
    made = replace(way.decision, recompute=None if whole else Recompute.of(graph, choice))
    yield made
    if gaps:
        yield replace(made, expandable_segments=True)


def _graph(way: Way) -> StepGraph:
    if way.graph is None:
        raise ValueError(f"{way.decision} has no step")
    return way.graph


def front(ways: Iterable[Way], points: int = _POINTS) -> tuple[Point, ...]:
    """Budgets from the least that a way reaches to what the plain step takes, with times."""
    given = [(way.graph, way.decision.micro_batches) for way in ways if way.graph is not None]
    most = simulate(given[0][0], given[0][0].droppable).peak_bytes
    least = min(smallest(graph, effort=_FRONT).outcome.peak_bytes for graph, _ in given)
    budgets = [least + (most - least) * i // (points - 1) for i in range(points)]
    rows = [(graph, parts, front_of(graph, budgets, effort=_FRONT)) for graph, parts in given]
    found: list[Point] = []
    for i in range(points):
        here = [
            Point(chosen.outcome.peak_bytes, graph.seconds + chosen.outcome.seconds * parts)
            for graph, parts, choices in rows
            if (chosen := choices[i]) is not None
        ]
        best = min(here, key=lambda point: point.step_s, default=None)
        if best is not None and (not found or best.step_s < found[-1].step_s):
            found.append(best)
    return tuple(found)


def _nothing(ways: list[Way], budget_bytes: int) -> str:
    graph = _graph(ways[0])
    if graph.base_bytes > budget_bytes:
        return (
            "Parameters, buffers, optimizer state and inputs take "
            f"{format_bytes(graph.base_bytes)} alone, more than the budget of "
            f"{format_bytes(budget_bytes)}. Recomputing activations cannot help; what would are "
            "fewer or smaller parameters, or an optimizer with less state."
        )
    graphs = [way.graph for way in ways if way.graph is not None]
    least = min(smallest(each, effort=_FRONT).outcome.peak_bytes for each in graphs)
    gaps = "" if least > budget_bytes else " The caching allocator leaves gaps beside that."
    return (
        f"Everything tried brings the peak down to about {format_bytes(least)}, of which "
        f"{format_bytes(graph.base_bytes)} are parameters, buffers, optimizer state and inputs; "
        f"the budget is {format_bytes(budget_bytes)}.{gaps} Give it more, or a smaller batch."
    )
