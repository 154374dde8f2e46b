from __future__ import annotations

import pytest

from ebbtide.errors import UsageError
from ebbtide.plan.graph import Step
from ebbtide.plan.made import Node, step_graph


def _two() -> list[Node]:
    return [
        Node(nbytes=4, seconds=1.0, gradient_bytes=4),
        Node(
            nbytes=2,
            seconds=3.0,
            reads=(0,),
            saves=(0,),
            saves_output=True,
            gradient_bytes=2,
            backward_bytes=5,
        ),
    ]


def test_the_events_are_those_of_a_step_that_holds_nothing() -> None:
    graph = step_graph(_two())
    gradient, work, before = 2, 3, 4
    assert graph.events == (
        (Step.CALL, 0),
        (Step.ALLOC, 0),
        (Step.SAVE, 0),
        (Step.CALL, 1),
        (Step.ALLOC, 1),
        (Step.SAVE, 1),
        (Step.FREE, 0),
        (Step.FREE, 1),
        (Step.ALLOC, gradient),
        (Step.USE, 0),
        (Step.USE, 1),
        (Step.ALLOC, work),
        (Step.ALLOC, before),
        (Step.FREE, work),
        (Step.FREE, gradient),
        (Step.RELEASE, 0),
        (Step.RELEASE, 1),
        (Step.FREE, before),
    )


def test_storages_know_their_calls_and_calls_what_they_read() -> None:
    graph = step_graph(_two(), base_bytes=7)
    assert [each.nbytes for each in graph.storages] == [4, 2, 2, 5, 4]
    assert [each.calls for each in graph.storages] == [(0,), (1,), (), (), ()]
    assert [source.storage for source in graph.calls[1].sources] == [0]
    assert (graph.base_bytes, graph.seconds) == (7, 12.0)
    assert graph.droppable == {0, 1}


@pytest.mark.parametrize(
    "node",
    [
        Node(nbytes=1, seconds=1.0, reads=(1,)),
        Node(nbytes=1, seconds=1.0, reads=(-1,)),
        Node(nbytes=1, seconds=1.0, reads=(0,), saves=(3,)),
    ],
)
def test_a_node_reads_what_was_there(node: Node) -> None:
    with pytest.raises(UsageError, match=r"Node 1 of 2 reads .* it can read nodes 0 to 0"):
        step_graph([Node(nbytes=1, seconds=1.0), node])
