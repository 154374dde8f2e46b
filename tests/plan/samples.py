"""Steps for the tests of the planner."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from ebbtide.plan.made import Node


def chain_nodes(seed: int, count: int) -> list[Node]:
    """A chain of uneven stages."""
    draw = random.Random(seed)
    return [
        Node(
            nbytes=draw.randint(1, 9),
            seconds=float(draw.randint(1, 9)),
            gradient_bytes=draw.randint(0, 9),
            scratch_bytes=draw.randint(0, 9) if draw.random() < 0.3 else 0,
            backward_bytes=draw.randint(0, 5),
        )
        for _ in range(count)
    ]


def even_chain(count: int, gradient: int = 1) -> list[Node]:
    """A chain in which every stage takes a byte and a second."""
    return [Node(nbytes=1, seconds=1.0, gradient_bytes=gradient) for _ in range(count)]


def graph_nodes(seed: int, count: int) -> list[Node]:
    """A graph in which every node reads some of the last four."""
    draw = random.Random(seed)
    nodes: list[Node] = []
    for i in range(count):
        near = range(max(0, i - 4), i)
        reads = tuple(sorted({draw.choice(near) for _ in range(draw.randint(1, 3))})) if i else ()
        nodes.append(
            Node(
                nbytes=draw.randint(1, 9),
                seconds=float(draw.randint(1, 9)),
                reads=reads,
                saves=tuple(each for each in reads if draw.random() < 0.6),
                saves_output=draw.random() < 0.3,
                gradient_bytes=draw.randint(0, 9),
                scratch_bytes=draw.randint(0, 9) if draw.random() < 0.2 else 0,
                backward_bytes=draw.randint(0, 5),
            )
        )
    return nodes


def graphs(least: int = 2, most: int = 10) -> st.SearchStrategy[list[Node]]:
    """Random graphs, by seed: hypothesis shrinks to few nodes."""
    return st.builds(graph_nodes, st.integers(0, 10_000), st.integers(least, most))
