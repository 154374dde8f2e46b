"""The least that must be computed again in a chain: exact, by dynamic programming.

A chain is a forward pass in which each stage reads what the one before it made and saves it
for backward. At any moment of backward one made thing is the last one held; what lies behind
it is done or not there. So the best way for the stages between two of them depends on the
bytes left for them alone. The recurrence is that of Rotor (Beaumont, Eyraud-Dubois, Herrmann,
Joly, Shilova: "Optimal checkpointing for heterogeneous chains", 2019) for stages with one way
to be run: what is held once is held until backward has used it. Where stages are very uneven
letting go of something and holding it again later may be better still, which this leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import UsageError
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.made import Node, step_graph


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A stage of a chain, in bytes and seconds.

    Attributes:
        nbytes: of what it makes.
        seconds: of running it.
        run_bytes: the most that running it takes beside what it reads and the rest that is
            held: what it makes, or its scratch where that is more.
        turn_bytes: the most that its backward takes, beside what it reads.
        gradient_bytes: of the gradient of what it makes, there from the backward of the next
            stage to its own.
    """

    nbytes: int
    seconds: float
    run_bytes: int
    turn_bytes: int
    gradient_bytes: int


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """What to hold of a chain.

    Attributes:
        seconds: of what is computed again.
        kept: stages whose output is held from the forward pass on.
        held: by other stage, the one whose backward first holds its output.
    """

    seconds: float
    kept: frozenset[int]
    held: dict[int, int]


def chain_graph(nodes: Sequence[Node], base_bytes: int = 0) -> StepGraph:
    """The step of a chain: node ``i`` reads and saves the output of node ``i - 1``.

    `reads` and `saves` of the nodes given are not looked at.
    """
    return step_graph([_linked(i, node) for i, node in enumerate(nodes)], base_bytes)


def _linked(i: int, node: Node) -> Node:
    reads = (i - 1,) if i else ()
    return Node(
        nbytes=node.nbytes,
        seconds=node.seconds,
        reads=reads,
        saves=reads,
        gradient_bytes=node.gradient_bytes,
        scratch_bytes=node.scratch_bytes,
        backward_bytes=node.backward_bytes,
    )


def stages(nodes: Sequence[Node]) -> list[Stage]:
    """The stages of `chain_graph`, with memory counted as `simulate` counts it."""
    found: list[Stage] = []
    before = 0
    for node in nodes:
        found.append(
            Stage(
                nbytes=node.nbytes,
                seconds=node.seconds,
                run_bytes=max(node.nbytes, node.scratch_bytes),
                turn_bytes=node.gradient_bytes + node.backward_bytes + before,
                gradient_bytes=node.gradient_bytes,
            )
        )
        before = node.gradient_bytes
    return found


def solve(chain: Sequence[Stage], budget_bytes: int, unit_bytes: int = 1) -> ChainPlan | None:
    """The plan of a chain that computes the least again; None where nothing fits.

    Args:
        chain: its stages; what the first one reads is always there, and not counted.
        budget_bytes: for everything else that is there at once.
        unit_bytes: memory is counted in these, rounded up: time goes with
            ``len(chain) ** 3 * budget_bytes / unit_bytes``.

    Raises:
        UsageError: there is no stage, or the unit is not positive.
    """
    if not chain or unit_bytes < 1:
        raise UsageError(
            f"A chain of {len(chain)} stages in units of {unit_bytes} bytes has no plan: at least "
            f"one of each is needed."
        )
    if budget_bytes < 0:
        return None
    table = _Table(chain, budget_bytes // unit_bytes, unit_bytes)
    table.fill()
    return table.plan()


class _Table:
    """Least seconds for stages `i + 1` to `j`, of whose beginning the output of `i` is held.

    Stages are numbered from 1, and 0 is what the first one reads. ``back[i][j][m]`` is for
    backward alone with `m` units free; ``ahead[i][m]`` begins with the forward pass and goes
    to the last stage.
    """

    def __init__(self, chain: Sequence[Stage], units: int, unit: int) -> None:
        def rounded(nbytes: int) -> int:
            return -(-nbytes // unit)

        self.count, self.units = len(chain), units
        self.size = [0, *(rounded(each.nbytes) for each in chain)]
        self.run = [0, *(rounded(each.run_bytes) for each in chain)]
        self.turn = [0, *(rounded(each.turn_bytes) for each in chain)]
        self.gradient = [0, *(rounded(each.gradient_bytes) for each in chain)]
        self.seconds = [0.0, *(each.seconds for each in chain)]
        self.back: dict[tuple[int, int], NDArray[np.float64]] = {}
        self.ahead: dict[int, NDArray[np.float64]] = {}

    def fill(self) -> None:
        """All of it, from short to long."""
        for length in range(1, self.count + 1):
            for i in range(self.count - length + 1):
                j = i + length
                self.back[i, j] = self._best([way for _, way in self._ways(i, j)])
        for i in range(self.count - 1, -1, -1):
            self.ahead[i] = self._best([way for _, way in self._forward_ways(i)])

    def _ways(self, i: int, j: int) -> list[tuple[int, NDArray[np.float64]]]:
        """By the next output held when backward asks for what stage `j` reads."""
        if j == i + 1:
            return [(i, self._least(0.0, self.turn[j]))]
        found = []
        seconds, most = 0.0, 0
        for k in range(i + 1, j):
            seconds += self.seconds[k]
            most = max(most, (self.size[k - 1] if k - 1 > i else 0) + self.run[k])
            way = self._least(seconds, most + self.gradient[j])
            way = way + self._behind(self.back[k, j], self.size[k]) + self.back[i, k]
            found.append((k, way))
        return found

    def _forward_ways(self, i: int) -> list[tuple[int, NDArray[np.float64]]]:
        """By the next output that is kept; `count` for none."""
        found = []
        most = 0
        for k in range(i + 1, self.count + 1):
            most = max(most, (self.size[k - 1] if k - 1 > i else 0) + self.run[k])
            way = self._least(0.0, most)
            if k == self.count:
                way = way + self.back[i, k]
            else:
                way = way + self._behind(self.ahead[k], self.size[k]) + self.back[i, k]
            found.append((k, way))
        return found

    def _least(self, seconds: float, units: int) -> NDArray[np.float64]:
        """`seconds` from `units` on, and no way below."""
        row = np.full(self.units + 1, np.inf)
        row[max(units, 0) :] = seconds
        return row

    def _behind(self, row: NDArray[np.float64], units: int) -> NDArray[np.float64]:
        """`row` with `units` taken by what is held."""
        moved = np.full(self.units + 1, np.inf)
        if units <= self.units:
            moved[units:] = row[: self.units + 1 - units]
        return moved

    def _best(self, ways: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        best: NDArray[np.float64] = np.minimum.reduce(ways)
        return best

    def plan(self) -> ChainPlan | None:
        """The way to the least, read off the table."""
        total = float(self.ahead[0][self.units])
        if total == np.inf:
            return None
        kept: set[int] = set()
        held: dict[int, int] = {}
        turns: list[tuple[int, int, int]] = []
        i, units = 0, self.units
        while i < self.count:
            k = min(self._forward_ways(i), key=lambda way: float(way[1][units]))[0]
            turns.append((i, k, units))
            if k < self.count:
                kept.add(k)
                units -= self.size[k]
            i = k
        while turns:
            i, j, units = turns.pop()
            if j == i + 1:
                continue
            k = min(self._ways(i, j), key=lambda way: float(way[1][units]))[0]
            held[k] = j
            turns += [(i, k, units), (k, j, units - self.size[k])]
        return ChainPlan(
            total,
            frozenset(each - 1 for each in kept),
            {each - 1: at - 1 for each, at in held.items()},
        )
