from __future__ import annotations

from dataclasses import replace

import numpy as np

from ebbtide.plan.graph import Call, Source, Step, StepGraph, Storage
from ebbtide.plan.made import Node, step_graph


def _branching() -> StepGraph:
    """Node 0 is saved by node 1 and again by node 2."""
    return step_graph(
        [
            Node(nbytes=4, seconds=1.0, gradient_bytes=4),
            Node(nbytes=2, seconds=2.0, reads=(0,), saves=(0,), gradient_bytes=2),
            Node(nbytes=1, seconds=3.0, reads=(0, 1), saves=(0, 1), gradient_bytes=1),
        ]
    )


def _at(graph: StepGraph, kind: Step, arg: int) -> list[int]:
    return [i for i, event in enumerate(graph.events) if event == (kind, arg)]


def test_saved_storages_are_given_with_their_last_release() -> None:
    graph = _branching()
    assert graph.saved == {0: _at(graph, Step.RELEASE, 0)[-1], 1: _at(graph, Step.RELEASE, 1)[0]}


def test_frees_are_where_the_program_lets_go() -> None:
    graph = _branching()
    assert graph.frees[0] == _at(graph, Step.FREE, 0)[0]


def test_a_saved_storage_that_is_never_released_stays_to_the_end() -> None:
    graph = _branching()
    events = tuple(event for event in graph.events if event != (Step.RELEASE, 1))
    cut = replace(graph, events=events)
    assert cut.saved[1] == len(events) - 1
    assert cut.index.release[1] == len(events) - 1


def test_uses_come_with_their_readers_from_the_last_to_the_first() -> None:
    graph = _branching()
    readers = graph.index.readers
    assert [use.position for use in readers[0]] == [2, 1]
    assert [use.position for use in readers[1]] == [2]
    releases = _at(graph, Step.RELEASE, 0)
    assert [use.over for use in readers[0]] == releases


def test_a_use_beyond_the_readers_counts_as_the_first_ones() -> None:
    graph = _branching()
    twice = replace(graph, events=(*graph.events, (Step.USE, 0)))
    assert [use.position for use in twice.index.readers[0]] == [2, 1, 1]


def test_what_cannot_be_called_again_cannot_be_dropped() -> None:
    graph = _branching()
    calls = (graph.calls[0], replace(graph.calls[1], repeatable=False), graph.calls[2])
    once = replace(graph, calls=calls)
    assert graph.droppable == {0, 1} and graph.fixed == frozenset()
    assert once.droppable == {0} and once.fixed == {1}


def test_the_program_holds_its_own_until_it_frees_it() -> None:
    graph = _branching()
    based = replace(graph, base_bytes=10)
    expected, there = [], 10
    for kind, arg in graph.events:
        there += graph.storages[arg].nbytes if kind == Step.ALLOC else 0
        expected.append(there)
        there -= graph.storages[arg].nbytes if kind == Step.FREE else 0
    assert based.index.program.tolist() == expected


def test_spans_of_bytes_are_added_up() -> None:
    index = _branching().index
    held = index.held([(1, 3, 5), (3, 4, 2), (10_000, 20_000, 9)])
    assert held[:6].tolist() == [0, 5, 5, 7, 2, 0]
    assert held.dtype == np.int64


def test_a_write_in_place_is_a_call_of_the_storage() -> None:
    """``x = f(); x.g_(); save x``: both calls make it."""
    call = Call("f", 1.0, 0, (), (0,), (), 0, True)
    write = Call("g_", 1.0, 0, (Source(0, 0),), (), (0,), 0, True)
    graph = StepGraph(
        base_bytes=0,
        storages=(Storage(4, (0, 0), (0, 1)),),
        calls=(call, write),
        events=(
            (Step.CALL, 0),
            (Step.ALLOC, 0),
            (Step.CALL, 1),
            (Step.SAVE, 0),
            (Step.FREE, 0),
            (Step.USE, 0),
            (Step.RELEASE, 0),
        ),
        seconds=2.0,
    )
    assert graph.index.changes == [(0,), (0,)]
    assert graph.index.sources == [(), (0,)]
