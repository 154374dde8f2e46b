"""Steps made by hand: a forward pass of nodes, and the backward pass that autograd would run.

For what is known without a model: chains, random graphs, examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.errors import UsageError
from ebbtide.plan.graph import Call, Source, Step, StepGraph, Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """An operation with one output.

    Attributes:
        nbytes: of the output.
        seconds: of calling it.
        reads: earlier nodes whose outputs it reads.
        saves: those of `reads` that its backward needs.
        saves_output: whether backward needs what it makes, as that of a tanh does.
        gradient_bytes: of the gradient of its output; 0 where it has none.
        scratch_bytes: held while it runs, beside its output.
        backward_bytes: held while its backward runs, beside the gradients.
        name: of the operation.
    """

    nbytes: int
    seconds: float
    reads: tuple[int, ...] = ()
    saves: tuple[int, ...] = ()
    saves_output: bool = False
    gradient_bytes: int = 0
    scratch_bytes: int = 0
    backward_bytes: int = 0
    name: str = "node"


def step_graph(nodes: Sequence[Node], base_bytes: int = 0) -> StepGraph:
    """The step of `nodes`, called in their order; storage and call ``i`` are those of node ``i``.

    The program lets go of an output after its last reader, of the last one at the end.
    Backward goes through the nodes from the last to the first: it reads what the node saved,
    allocates the gradients of what the node read, where they are not there yet, and lets go
    of the node's own gradient and of what it saved.

    Raises:
        UsageError: a node reads a later one, or saves what it does not read.
    """
    for i, node in enumerate(nodes):
        if any(not 0 <= each < i for each in node.reads) or not set(node.saves) <= {*node.reads}:
            raise UsageError(
                f"Node {i} of {len(nodes)} reads {node.reads} and saves {node.saves}: it can read "
                f"nodes 0 to {i - 1} and save what it reads."
            )
    building = _Building(nodes)
    building.forward()
    building.backward()
    return StepGraph(
        base_bytes=base_bytes,
        storages=tuple(building.storages),
        calls=tuple(_call(i, node) for i, node in enumerate(nodes)),
        events=tuple(building.events),
        seconds=3 * sum(node.seconds for node in nodes),
    )


def _call(i: int, node: Node) -> Call:
    return Call(
        name=node.name,
        seconds=node.seconds,
        flops=round(node.seconds * 1e12),
        sources=tuple(Source(each, 0) for each in node.reads),
        makes=(i,),
        writes=(),
        scratch_bytes=node.scratch_bytes,
        repeatable=True,
    )


class _Building:
    """Events and storages, as they come."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.events: list[tuple[int, int]] = []
        self.storages = [Storage(node.nbytes, (i, 0), (i,)) for i, node in enumerate(nodes)]

    def forward(self) -> None:
        """Calls, and what they save."""
        last = {each: i for i, node in enumerate(self.nodes) for each in node.reads}
        for i, node in enumerate(self.nodes):
            self.events += [(Step.SAVE, each) for each in node.saves]
            self.events += [(Step.CALL, i), (Step.ALLOC, i)]
            if node.saves_output:
                self.events.append((Step.SAVE, i))
            gone = (each for each in dict.fromkeys(node.reads) if last[each] == i)
            self.events += [(Step.FREE, each) for each in gone]
        ends = (i for i in range(len(self.nodes)) if i not in last)
        self.events += [(Step.FREE, each) for each in ends]

    def backward(self) -> None:
        """Gradients."""
        gradient: dict[int, int] = {}
        for i in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[i]
            self._gradient(gradient, i)
            used = [*node.saves, *([i] if node.saves_output else [])]
            self.events += [(Step.USE, each) for each in used]
            work = self._alloc(node.backward_bytes)
            for each in dict.fromkeys(node.reads):
                self._gradient(gradient, each)
            self._free(work)
            self._free(gradient.pop(i))
            self.events += [(Step.RELEASE, each) for each in used]

    def _gradient(self, gradient: dict[int, int], node: int) -> None:
        if node not in gradient:
            gradient[node] = self._alloc(self.nodes[node].gradient_bytes)

    def _alloc(self, nbytes: int) -> int:
        if not nbytes:
            return -1
        self.storages.append(Storage(nbytes, None, ()))
        self.events.append((Step.ALLOC, len(self.storages) - 1))
        return len(self.storages) - 1

    def _free(self, storage: int) -> None:
        if storage >= 0:
            self.events.append((Step.FREE, storage))
