"""How far plans are from the optimum: `python bench/optimality.py`.

Chains are held against exact dynamic programming, random graphs against Checkmate's program
on HiGHS, at five budgets each between the smallest that can be met and the one that needs
nothing. Budgets at which nothing is to be made again are left out, and so are those at which
the solver could not close the gap within its nodes, which are counted. Both references are of
the same step, and `ebbtide.plan.simulate` is the judge of ours.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ebbtide.plan.chain import chain_graph, solve, stages
from ebbtide.plan.checkmate import optimum
from ebbtide.plan.choose import choose
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.made import Node, step_graph
from ebbtide.plan.simulate import simulate

WITHIN = 1.02


@dataclass(frozen=True, slots=True)
class Cell:
    """One step at one budget; `ours` and `best` are seconds, None where nothing was found."""

    family: str
    name: str
    share: float
    ours: float | None
    best: float | None
    closed: bool
    took_s: float

    @property
    def ratio(self) -> float:
        """Ours to the best; 1 is perfect."""
        if self.best is None:
            return 1.0
        if self.ours is None:
            return float("inf")
        return self.ours / self.best if self.best > 0 else (1.0 if self.ours <= 0 else float("inf"))


def random_chain(seed: int) -> list[Node]:
    """Eight to forty stages, sizes and times of each drawn from a wide range."""
    draw = random.Random(seed)
    even = draw.random() < 0.3
    size = draw.randint(2, 20)

    def node() -> Node:
        nbytes = size if even else draw.randint(1, 20)
        return Node(
            nbytes=nbytes,
            seconds=float(draw.randint(1, 20)),
            gradient_bytes=nbytes,
            scratch_bytes=draw.randint(0, 20) if draw.random() < 0.2 else 0,
            backward_bytes=draw.randint(0, 10) if draw.random() < 0.3 else 0,
        )

    return [node() for _ in range(draw.randint(8, 40))]


def random_nodes(seed: int) -> list[Node]:
    """Ten to forty nodes that read one to three of the last six, now and then one far back.

    Half of what is read is saved; a quarter of the outputs are.
    """
    draw = random.Random(seed)
    nodes: list[Node] = []
    for i in range(draw.randint(10, 40)):
        near = range(max(0, i - 6), i)
        reads = {draw.choice(near) for _ in range(draw.choice((1, 1, 2, 3)))} if i else set()
        if i > 6 and draw.random() < 0.1:
            reads.add(draw.randrange(i - 6))
        if i and not any(i - 1 in node.reads for node in nodes):
            reads.add(i - 1)
        nbytes = draw.randint(1, 20)
        nodes.append(
            Node(
                nbytes=nbytes,
                seconds=float(draw.choice((0.1, 1, 1, 5, 20)) * draw.randint(1, 5)),
                reads=tuple(sorted(reads)),
                saves=tuple(each for each in sorted(reads) if draw.random() < 0.5),
                saves_output=draw.random() < 0.25,
                gradient_bytes=nbytes,
                scratch_bytes=draw.randint(0, 10) if draw.random() < 0.2 else 0,
                backward_bytes=draw.randint(0, 10) if draw.random() < 0.2 else 0,
            )
        )
    return nodes


def u_shape(seed: int) -> list[Node]:
    """A U-Net: what goes down is read again on the way up."""
    draw = random.Random(seed)
    depth = draw.randint(2, 4)
    nodes: list[Node] = []
    skips: list[int] = []

    def add(nbytes: int, *reads: int) -> int:
        saves = reads if draw.random() < 0.8 else ()
        nodes.append(
            Node(
                nbytes=nbytes,
                seconds=float(nbytes) * draw.choice((0.2, 1, 3)),
                reads=reads,
                saves=saves,
                saves_output=draw.random() < 0.3,
                gradient_bytes=nbytes,
            )
        )
        return len(nodes) - 1

    at = add(32)
    for level in range(depth):
        for _ in range(draw.randint(1, 3)):
            at = add(32 >> level, at)
        skips.append(at)
        at = add(16 >> level, at)
    for level in reversed(range(depth)):
        at = add(32 >> level, at, skips[level])
        for _ in range(draw.randint(1, 3)):
            at = add(32 >> level, at)
    add(1, at)
    return nodes


def budgets(graph: StepGraph, count: int = 5) -> list[tuple[float, int]]:
    """Shares of what keeping everything takes, and bytes."""
    most = simulate(graph, graph.droppable).peak_bytes
    return [(share, int(most * share)) for share in (0.9, 0.75, 0.6, 0.45, 0.35)[:count]]


def cells(family: str, count: int, nodes: int) -> Iterator[Cell]:
    """All cells of a family."""
    make = {"chain": random_chain, "random": random_nodes, "u-shape": u_shape}[family]
    for seed in range(count):
        made = make(seed)
        graph = chain_graph(made) if family == "chain" else step_graph(made)
        for share, budget in budgets(graph):
            if family == "chain":
                plan = solve(stages(made), budget)
                best, closed = (None if plan is None else plan.seconds), True
            else:
                found = optimum(graph, budget, nodes)
                best, closed = found.seconds, found.closed
            if best == 0:
                continue
            began = time.perf_counter()
            ours = choose(graph, budget)
            took = time.perf_counter() - began
            seconds = None if ours is None else ours.outcome.seconds
            yield Cell(family, f"{seed} ({len(made)})", share, seconds, best, closed, took)


def table(found: list[Cell]) -> str:
    """A line a family."""
    lines = ["family    cells  closed  within 2 %   mean    worst  not found  median s"]
    for family in dict.fromkeys(each.family for each in found):
        mine = [each for each in found if each.family == family]
        judged = [each for each in mine if each.closed and each.best is not None]
        near = sum(each.ratio <= WITHIN for each in judged)
        finite = [each.ratio for each in judged if each.ratio < float("inf")]
        lost = sum(each.ours is None for each in judged)
        middle = sorted(each.took_s for each in mine)[len(mine) // 2]
        lines.append(
            f"{family:9} {len(mine):5}  {len(judged):6}  {near / max(len(judged), 1):9.1%}  "
            f"{sum(finite) / max(len(finite), 1):6.3f}  {max(finite, default=1):6.2f}  "
            f"{lost:9}  {middle:8.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="steps of each family")
    parser.add_argument("--nodes", type=int, default=2000, help="the solver's limit")
    parser.add_argument("--family", action="append", choices=["chain", "random", "u-shape"])
    parser.add_argument("--cells", action="store_true", help="print every cell that is not near")
    given = parser.parse_args()
    found: list[Cell] = []
    for family in given.family or ["chain", "random", "u-shape"]:
        for cell in cells(family, given.count, given.nodes):
            found.append(cell)
            if given.cells and cell.ratio > WITHIN:
                print(cell, file=sys.stderr)
    print(table(found))


if __name__ == "__main__":
    main()
