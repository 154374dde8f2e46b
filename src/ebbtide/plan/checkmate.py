"""The least that must be computed again in a small step: a mixed-integer program.

The formulation is Checkmate's (Jain et al., "Checkmate: Breaking the Memory Wall with Optimal
Tensor Rematerialization", 2020), on HiGHS through SciPy. Backward is cut into *stages*, one
at each place where it asks for saved storages. In every stage each operation may be called
again, in the order of the forward pass, and each storage may be held over to the next stage;
memory is bounded at every call. Nothing is said about how a thing came to be held, so no way
of keeping, dropping and making again is left out. Bytes are counted as `simulate` counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from ebbtide.errors import UsageError
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.index import Use

MOST_CALLS = 120
"""Beyond so many operations the program is too large to be of use."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the program came to.

    Attributes:
        seconds: of the best way found to compute again; None where none was found.
        bound: no way computes less again.
        closed: whether the solver proved that nothing is better, or that nothing fits.
        kept: the storages held from the forward pass on, in the way found.
        held: by stage, as its first event, the storages held over to the next one.
    """

    seconds: float | None
    bound: float
    closed: bool
    kept: frozenset[int]
    held: dict[int, frozenset[int]]

    @property
    def gap(self) -> float | None:
        """How far the way found may be from the optimum, as a share of it."""
        if self.seconds is None:
            return None
        return (self.seconds - self.bound) / self.seconds if self.seconds > 0 else 0.0


def optimum(
    graph: StepGraph, budget_bytes: int, nodes: int = 2000, tolerance: float = 1e-4
) -> Optimum:
    """The least seconds of recomputing with a peak of at most `budget_bytes`.

    Args:
        graph: the step.
        budget_bytes: for the peak, `graph.base_bytes` included.
        nodes: the most that the solver may branch to; with it the answer is the same on
            every machine.
        tolerance: the relative gap at which the solver is content.

    Raises:
        UsageError: the step has more than `MOST_CALLS` operations.
    """
    program = _Program(graph, budget_bytes)
    program.build()
    return program.solve(nodes, tolerance)


def relaxed(graph: StepGraph, budget_bytes: int) -> float | None:
    """What `optimum` is at least: the same program with fractions; None where nothing fits.

    Raises:
        UsageError: the step has more than `MOST_CALLS` operations.
    """
    program = _Program(graph, budget_bytes)
    program.build()
    return program.relaxed()


def operations(graph: StepGraph) -> int:
    """How many operations make a storage."""
    return sum(bool(made) for made in graph.index.makes)


@dataclass(frozen=True, slots=True)
class Stage:
    """A place of backward: the events of its first use and of the one after the last."""

    event: int
    after: int
    uses: tuple[Use, ...]


class _Program:
    """Variables and rows, as they are found."""

    def __init__(self, graph: StepGraph, budget: int) -> None:
        count = operations(graph)
        if count > MOST_CALLS:
            raise UsageError(
                f"The step has {count} operations that make storages; the exact program is for at "
                f"most {MOST_CALLS}. Use `choose`, or a part of the step."
            )
        self.graph, self.index, self.budget = graph, graph.index, budget
        self.stages = stages_of(graph)
        self.costs: list[float] = []
        self.lows: list[float] = []
        self.whole: list[int] = []
        self.rows: list[dict[int, float]] = []
        self.most: list[float] = []
        self.hold: dict[tuple[int, int], int] = {}
        self.call: dict[tuple[int, int], int] = {}
        self.impossible = False

    @cached_property
    def dropped(self) -> list[int]:
        """Storages that may be dropped and made again."""
        index = self.index
        return [
            each
            for each, calls in enumerate(index.made_by)
            if calls and each not in index.fixed and self.last[each] >= 0
        ]

    @cached_property
    def last(self) -> list[int]:
        """By storage, the last stage at which it or something made from it is asked for."""
        index = self.index
        last = [-1] * len(index.nbytes)
        for t, stage in enumerate(self.stages):
            for use in stage.uses:
                last[use.storage] = t
        for call in range(len(index.sources) - 1, -1, -1):
            latest = max((last[each] for each in index.changes[call]), default=-1)
            for each in index.sources[call]:
                last[each] = max(last[each], latest)
        return last

    @cached_property
    def resident(self) -> NDArray[np.int64]:
        """By event, bytes that are there however one chooses."""
        index, spans = self.index, []
        for each, calls in enumerate(index.made_by):
            end = index.release[each]
            if each in index.fixed and self.last[each] >= 0:
                end = max(end, self.stages[self.last[each]].event)
            if (each in index.fixed or not calls) and end > index.free[each]:
                spans.append((index.free[each] + 1, end, index.nbytes[each]))
        return index.program + index.held(spans)

    def there(self, t: int, storage: int) -> bool:
        """Whether `storage` is not to be chosen in stage `t`: the program has it, or it stays."""
        index = self.index
        return (
            not index.made_by[storage]
            or storage in index.fixed
            or index.free[storage] >= self.stages[t].event
        )

    def build(self) -> None:
        """Everything."""
        for t in range(len(self.stages)):
            for each in self.dropped:
                if t <= self.last[each] and not self.there(t, each):
                    pinned = any(
                        use.storage == each and use.over >= self.stages[t].event
                        for stage in self.stages[:t]
                        for use in stage.uses
                    )
                    self.hold[t, each] = self._variable(0.0, low=float(pinned), whole=True)
            for call in range(len(self.graph.calls)):
                if any((t, each) in self.hold for each in self.index.changes[call]):
                    seconds = self.graph.calls[call].seconds
                    self.call[t, call] = self._variable(seconds, whole=True)
        self._forward()
        for t in range(len(self.stages)):
            self._stage(t)
            self._between(t)

    def _variable(self, cost: float, low: float = 0.0, whole: bool = False) -> int:
        self.costs.append(cost)
        self.lows.append(low)
        self.whole.append(int(whole))
        return len(self.costs) - 1

    def _row(self, terms: dict[int, float], most: float) -> None:
        """The terms come to at most `most`."""
        if terms:
            self.rows.append(terms)
            self.most.append(most)
        elif most < 0:
            self.impossible = True

    def _memory(self, terms: dict[int, float], rest: float) -> None:
        """The terms and `rest`, in bytes, are within the budget; told in shares of it."""
        scale = max(self.budget, 1)
        self._row({k: v / scale for k, v in terms.items() if v}, (self.budget - rest) / scale)

    def _forward(self) -> None:
        index = self.index
        first = self.stages[0].event if self.stages else index.end
        kept = {each: at for (t, each), at in self.hold.items() if t == 0}
        worst: dict[int, int] = {}
        usage = self.resident + index.touched
        gone = sorted(index.free[each] for each in kept)
        for event in np.flatnonzero(index.looks[:first]):
            count = int(np.searchsorted(gone, event))
            worst[count] = max(worst.get(count, 0), int(usage[event]))
        order = sorted(kept, key=lambda each: index.free[each])
        for count, most in worst.items():
            self._memory({kept[e]: float(index.nbytes[e]) for e in order[:count]}, most)

    def _stage(self, t: int) -> None:
        """What is called again in stage `t`, and the memory at each call."""
        index, stage = self.index, self.stages[t]
        wanted = {use.storage for use in stage.uses}
        calls = sorted(call for at, call in self.call if at == t)
        alive: dict[int, list[tuple[int, int]]] = {}
        for each in self.dropped:
            if (t, each) in self.hold:
                alive[each] = self._life(t, each, each in wanted)
        rest = float(self.resident[stage.event])
        held = {self.hold[t, each]: float(index.nbytes[each]) for each in alive}
        self._memory(held, rest)
        for call in calls:
            terms: dict[int, float] = {}
            for each, life in alive.items():
                at = next((variable for to, variable in life if call <= to), -1)
                if at >= 0:
                    terms[at] = terms.get(at, 0.0) + index.nbytes[each]
            mine = self.call[t, call]
            unread = sum(
                index.nbytes[each]
                for each in index.makes[call]
                if each not in alive and not self.there(t, each)
            )
            if unread:
                terms[mine] = terms.get(mine, 0.0) + unread
            self._memory(terms, rest)
            self._scratch(terms, call, mine, alive, rest)

    def _scratch(
        self,
        terms: dict[int, float],
        call: int,
        mine: int,
        alive: dict[int, list[tuple[int, int]]],
        rest: float,
    ) -> None:
        """Before a call makes anything it has its scratch."""
        index = self.index
        makes = sum(index.nbytes[each] for each in index.makes[call])
        if index.scratch[call] <= makes:
            return  # no more than what it makes: already bounded
        before = dict(terms)
        before.pop(mine, None)
        for each in index.makes[call]:
            for to, variable in alive.get(each, ()):
                if call <= to:
                    before[variable] = before.get(variable, 0.0) - index.nbytes[each]
                    break
        before[mine] = float(index.scratch[call])
        self._memory(before, rest)

    def _life(self, t: int, storage: int, wanted: bool) -> list[tuple[int, int]]:
        """Until which call of stage `t` each variable says whether `storage` is there.

        It is there at the beginning if it was held, from the call that makes it if that is
        called, then as far as its last reader that is called, or to the end.
        """
        index = self.index
        first, *writes = index.made_by[storage]
        held, made = self.hold[t, storage], self.call[t, first]
        for call in writes:
            self._row({self.call[t, call]: 1.0, made: -1.0}, 0.0)
            self._row({self.call[t, call]: -1.0, made: 1.0}, 0.0)
        readers = [
            call
            for call, sources in enumerate(index.sources)
            if storage in sources and (t, call) in self.call and call not in writes
        ]
        readers = sorted({*readers, *writes})
        life = [(first - 1, held)]
        ahead = -1
        for to in [*readers, 1 << 30]:
            variable = self._variable(0.0)
            life.append((to, variable))
            if ahead < 0:
                self._row({variable: 1.0, held: -1.0, made: -1.0}, 0.0)
                self._row({made: 1.0, variable: -1.0}, 0.0)
            else:
                self._row({variable: 1.0, ahead: -1.0}, 0.0)
            if to < 1 << 30:
                self._row({self.call[t, to]: 1.0, variable: -1.0}, 0.0)
            ahead = variable
        if wanted:
            self.lows[ahead] = 1.0
        if (t + 1, storage) in self.hold:
            self._row({self.hold[t + 1, storage]: 1.0, ahead: -1.0}, 0.0)
        return life

    def _between(self, t: int) -> None:
        """Memory from the uses of stage `t` to the next ones."""
        index, stage = self.index, self.stages[t]
        worst: dict[tuple[frozenset[int], frozenset[int]], int] = {}
        over: dict[int, int] = {}
        for earlier in self.stages[: t + 1]:
            for use in earlier.uses:
                over[use.storage] = max(over.get(use.storage, -1), use.over)
        next_held = {each: at for (s, each), at in self.hold.items() if s == t + 1}
        for event in range(stage.event, stage.after):
            if not index.looks[event]:
                continue
            pinned = frozenset(
                each
                for each, end in over.items()
                if end >= event > index.free[each] and (t, each) in self.hold
            )
            counted = frozenset(e for e in next_held if index.free[e] < event) - pinned
            key = (pinned, counted)
            worst[key] = max(worst.get(key, 0), int(self.resident[event] + index.touched[event]))
        for (pinned, counted), most in worst.items():
            terms = {next_held[each]: float(index.nbytes[each]) for each in counted}
            self._memory(terms, most + sum(index.nbytes[each] for each in pinned))

    def _matrix(self) -> csr_array:
        entries = [(i, k, v) for i, row in enumerate(self.rows) for k, v in row.items()]
        i, k, v = zip(*entries, strict=True)
        return csr_array((v, (i, k)), shape=(len(self.rows), len(self.costs)))

    def _easy(self) -> Optimum | None:
        if self.impossible:
            return Optimum(None, float("inf"), True, frozenset(), {})
        if not self.rows:
            return Optimum(0.0, 0.0, True, frozenset(), {})
        return None

    def solve(self, nodes: int, tolerance: float) -> Optimum:
        """With whole numbers."""
        easy = self._easy()
        if easy is not None:
            return easy
        scale = max(self.costs) or 1.0
        found = milp(
            np.array(self.costs) / scale,
            integrality=np.array(self.whole),
            bounds=Bounds(np.array(self.lows), 1.0),
            constraints=LinearConstraint(self._matrix(), -np.inf, np.array(self.most)),
            options={"node_limit": nodes, "mip_rel_gap": tolerance},
        )
        if found.x is None:
            known = found.mip_dual_bound
            bound = scale * known if known is not None else 0.0
            closed = found.status == 2
            return Optimum(None, float("inf") if closed else bound, closed, frozenset(), {})
        bound = scale * float(found.mip_dual_bound) if found.mip_dual_bound is not None else 0.0
        seconds = float(sum(self.costs[at] for at in self.call.values() if found.x[at] > 0.5))
        held: dict[int, set[int]] = {stage.event: set() for stage in self.stages}
        for t, each in self._held(found.x):
            if t:
                held[self.stages[t - 1].event].add(each)
        return Optimum(
            seconds,
            min(bound, seconds),
            found.status == 0,
            frozenset(each for t, each in self._held(found.x) if t == 0),
            {event: frozenset(each) for event, each in held.items()},
        )

    def _held(self, x: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
        return (key for key, at in self.hold.items() if x[at] > 0.5)

    def relaxed(self) -> float | None:
        """With fractions."""
        easy = self._easy()
        if easy is not None:
            return easy.seconds
        found = linprog(
            np.array(self.costs),
            A_ub=self._matrix(),
            b_ub=np.array(self.most),
            bounds=np.stack([np.array(self.lows), np.ones(len(self.lows))], axis=1),
        )
        return float(found.fun) if found.status == 0 else None


def stages_of(graph: StepGraph) -> list[Stage]:
    """Uses between which nothing is allocated and no reader is done are of one stage."""
    index = graph.index
    groups: list[list[Use]] = []
    for use in index.uses:
        if not index.made_by[use.storage]:
            continue
        if groups and _together(graph, groups[-1], use):
            groups[-1].append(use)
        else:
            groups.append([use])
    ends = [*(group[0].event for group in groups[1:]), index.end]
    return [
        Stage(group[0].event, end, tuple(group))
        for group, end in zip(groups, ends, strict=False)  # no group, and still an end
    ]


def _together(graph: StepGraph, group: list[Use], use: Use) -> bool:
    if any(each.over < use.event for each in group):
        return False
    return not graph.index.looks[group[-1].event : use.event].any()
