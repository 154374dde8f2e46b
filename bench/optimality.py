"""How far plans are from the optimum: `python bench/optimality.py`.

Chains are held against dynamic programming, which is exact where what is held once stays until
it was used, and ("any way") against Checkmate's program, which knows no such rule; random graphs,
U-Nets and steps of small models as the virtual GPU sees them ("traced") against the program too.
A cell is near where ours is within 2 % of the solver's bound, far where it is not within 2 % of the
best that the solver found, and open in between. Budgets at which nothing is to be made again, or
that are proved to be too small, are left out. `ebbtide.plan.simulate` is the judge of ours.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ebbtide import VirtualGpu
from ebbtide.plan.chain import chain_graph, solve, stages
from ebbtide.plan.checkmate import operations, optimum
from ebbtide.plan.choose import choose, smallest
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.made import Node, step_graph
from ebbtide.plan.simulate import simulate
from ebbtide.train.survey import Survey

WITHIN = 1.02


@dataclass(frozen=True, slots=True)
class Cell:
    """One step at one budget; `ours` and `best` are seconds, None where nothing was found."""

    family: str
    name: str
    share: float
    ours: float | None
    best: float | None
    bound: float
    took_s: float

    @property
    def ratio(self) -> float:
        """Ours to the best; 1 is perfect."""
        if self.best is None or self.ours == self.best:
            return 1.0
        if self.ours is None:
            return float("inf")
        return self.ours / self.best if self.best > 0 else float("inf")

    @property
    def verdict(self) -> str:
        """`near`, `far` or `open`."""
        if self.ours is not None and self.ours <= WITHIN * self.bound + 1e-12:
            return "near"
        if self.best is not None and self.ratio > WITHIN:
            return "far"
        return "open"


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


def budgets(graph: StepGraph) -> list[tuple[float, int]]:
    """Shares of what keeping everything takes, and bytes."""
    most = simulate(graph, graph.droppable).peak_bytes
    return [(share, int(most * share)) for share in (0.9, 0.75, 0.6, 0.45, 0.35)]


def budgets_between(graph: StepGraph) -> list[tuple[float, int]]:
    """The same, spread from the smallest that we can meet: small models leave little to choose."""
    most = simulate(graph, graph.droppable).peak_bytes
    least = smallest(graph).outcome.peak_bytes
    found = [least + int((most - least) * part) for part in (0.9, 0.7, 0.5, 0.3, 0.1, 0.0)]
    return [(round(budget / most, 3), budget) for budget in found]


def traced(seed: int) -> StepGraph | None:
    """A small model's step on the virtual GPU; None behind the last one."""
    makes: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
        (lambda: nn.Sequential(*[nn.Linear(512, 512), nn.GELU()] * 5), (256, 512)),
        (lambda: nn.Sequential(*[nn.Linear(99, 99), nn.Tanh(), nn.LayerNorm(99)] * 4), (512, 99)),
        (lambda: nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), (4, 64, 128)),
        (
            lambda: nn.Sequential(
                *[nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()] * 4
            ),
            (4, 8, 64, 64),
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(8, 32, 3), nn.SiLU(), nn.GroupNorm(4, 32), nn.Conv2d(32, 8, 3), nn.SiLU(),
                nn.AvgPool2d(2), nn.Conv2d(8, 9, 3), nn.GELU(), nn.Dropout(0.1), nn.Conv2d(9, 8, 1)
            ),
            (4, 8, 64, 64),
        ),
    ]  # fmt: skip
    if seed >= len(makes):
        return None
    make, shape = makes[seed]
    with VirtualGpu("a100-80gb") as gpu:
        model = make().to("cuda")
        x = torch.randn(shape, device="cuda")
        model(x).square().mean().backward()
        survey = Survey(gpu)
        with survey.saved:
            model(x).square().mean().backward()
        return survey.graph()


def judged(family: str, seed: int) -> Iterator[tuple[str, StepGraph, float, int]]:
    """Name, step, share and budget of each cell."""
    if family == "traced":
        graph = traced(seed)
        name = "" if graph is None else f"{seed} ({operations(graph)})"
    else:
        made = MAKE[family](seed)
        graph = chain_graph(made) if MAKE[family] is random_chain else step_graph(made)
        name = f"{seed} ({len(made)})"
    if graph is not None:
        for share, budget in (budgets_between if family == "traced" else budgets)(graph):
            yield name, graph, share, budget


def cells(family: str, count: int, nodes: int, exact: int) -> Iterator[Cell]:
    """All cells of a family."""
    for seed in range(count):
        for name, graph, share, budget in judged(family, seed):
            if family == "chain":
                plan = solve(stages(random_chain(seed)), budget)
                best = None if plan is None else plan.seconds
                bound = 0.0 if best is None else best
                impossible = plan is None
            else:
                found = optimum(graph, budget, nodes)
                best, bound = found.seconds, found.bound
                impossible = found.closed and best is None
            if best == 0 or impossible:
                continue
            began = time.perf_counter()
            ours = choose(graph, budget, exact_nodes=exact)
            took = time.perf_counter() - began
            seconds = None if ours is None else ours.outcome.seconds
            yield Cell(family, name, share, seconds, best, bound, took)


def table(found: list[Cell]) -> str:
    """A line a family."""
    lines = ["family   cells  near  far  open  within 2 %   mean   worst  not found  median s"]
    for family in dict.fromkeys(each.family for each in found):
        mine = [each for each in found if each.family == family]
        count = {verdict: 0 for verdict in ("near", "far", "open")}
        for each in mine:
            count[each.verdict] += 1
        finite = [each.ratio for each in mine if each.ratio < float("inf")]
        lost = sum(each.ours is None and each.best is not None for each in mine)
        middle = sorted(each.took_s for each in mine)[len(mine) // 2]
        share = count["near"] / max(count["near"] + count["far"], 1)
        lines.append(
            f"{family:8} {len(mine):5} {count['near']:5} {count['far']:4} {count['open']:5}  "
            f"{share:10.1%} {sum(finite) / max(len(finite), 1):6.3f} "
            f"{max(finite, default=1):7.2f}  "
            f"{lost:9}  {middle:8.3f}"
        )
    return "\n".join(lines)


MAKE = {"chain": random_chain, "any way": random_chain, "random": random_nodes, "u-shape": u_shape}
FAMILIES = [*MAKE, "traced"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="steps of each family")
    parser.add_argument("--nodes", type=int, default=2000, help="the solver's limit")
    parser.add_argument("--exact", type=int, default=0, help="nodes of the solver in ours")
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--cells", action="store_true", help="print every cell that is not near")
    given = parser.parse_args()
    found: list[Cell] = []
    for family in given.family or FAMILIES:
        for cell in cells(family, given.count, given.nodes, given.exact):
            found.append(cell)
            if given.cells and cell.verdict == "far":
                print(cell, file=sys.stderr)
    print(table(found))


if __name__ == "__main__":
    main()
