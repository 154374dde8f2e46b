from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan import naive
from tests.plan.samples import even_chain, graph_nodes, graphs

from ebbtide.plan.chain import chain_graph
from ebbtide.plan.made import Node, step_graph
from ebbtide.plan.simulate import NEVER, simulate

CHAIN = chain_graph(even_chain(5, gradient=0))


def test_all_kept_is_a_plain_step() -> None:
    outcome = simulate(CHAIN, CHAIN.droppable)
    assert (outcome.peak_bytes, outcome.seconds, outcome.calls) == (5, 0.0, 0)
    assert outcome.at_peak == CHAIN.droppable


def test_all_dropped_is_made_once_and_held() -> None:
    """Backward of the last stage makes outputs 0 to 3 again; no other has to."""
    outcome = simulate(CHAIN, frozenset())
    assert (outcome.peak_bytes, outcome.seconds, outcome.calls) == (4, 4.0, 4)


def test_nothing_held_is_made_for_every_reader() -> None:
    """4 + 3 + 2 + 1 stages, with two outputs there at a time."""
    outcome = simulate(CHAIN, frozenset(), dict.fromkeys(range(5), NEVER))
    assert (outcome.peak_bytes, outcome.calls) == (2, 10)


def test_a_position_says_from_where_on_it_is_held() -> None:
    """Output 1 passes for stage 4, is held when stage 3 asks, and serves stage 2."""
    holds = {0: NEVER, 1: 3, 2: NEVER, 3: NEVER}
    outcome = simulate(CHAIN, frozenset(), holds)
    assert outcome.calls == 4 + 3 + 0 + 1
    assert outcome.held_at_peak <= {1}


def test_a_kept_storage_that_is_not_saved_serves_those_that_are() -> None:
    nodes = [
        Node(nbytes=8, seconds=1.0),
        Node(nbytes=1, seconds=5.0, reads=(0,)),
        Node(nbytes=4, seconds=1.0, reads=(1,)),
        Node(nbytes=1, seconds=1.0, reads=(2,), saves=(2,)),
        Node(nbytes=1, seconds=1.0, reads=(3,)),
    ]
    graph = step_graph(nodes)
    assert simulate(graph, frozenset()).seconds == 7.0
    kept = simulate(graph, frozenset({1}))
    assert kept.seconds == 1.0
    assert kept.lasts == {1: 3}


def _skip() -> list[Node]:
    """Output 0 is read by stages 1 and 4."""
    return [
        Node(nbytes=4, seconds=2.0),
        Node(nbytes=3, seconds=1.0, reads=(0,), saves=(0,)),
        Node(nbytes=3, seconds=1.0, reads=(1,), saves=(1,)),
        Node(nbytes=3, seconds=1.0, reads=(2,), saves=(2,), backward_bytes=9),
        Node(nbytes=1, seconds=1.0, reads=(0, 3), saves=(0, 3)),
    ]


def test_a_storage_can_be_kept_for_its_late_readers_alone() -> None:
    graph = step_graph(_skip())
    kept = graph.droppable - {0}
    whole = simulate(graph, graph.droppable)
    part = simulate(graph, kept, keeps={0: 4})
    none = simulate(graph, kept, {0: NEVER})
    assert (whole.seconds, part.seconds, none.seconds) == (0.0, 2.0, 4.0)
    assert part.peak_bytes == whole.peak_bytes - 4


def test_what_cannot_be_made_again_is_kept_whatever_is_asked() -> None:
    calls = (replace(CHAIN.calls[0], repeatable=False), *CHAIN.calls[1:])
    once = replace(CHAIN, calls=calls)
    assert simulate(once, frozenset()).calls == 3
    assert simulate(once, frozenset()) == simulate(once, frozenset({0}))


def test_scratch_counts_when_a_call_is_made_again() -> None:
    nodes = even_chain(5, gradient=0)
    nodes[1] = replace(nodes[1], scratch_bytes=7)
    graph = chain_graph(nodes)
    assert simulate(graph, graph.droppable).peak_bytes == 8
    kept = simulate(graph, frozenset({3}))
    assert kept.peak_bytes == 1 + 7  # in forward and again in backward, where 3 is gone by then
    assert simulate(graph, frozenset()).peak_bytes == 8


def test_bytes_that_are_there_throughout_are_added() -> None:
    based = replace(CHAIN, base_bytes=100)
    assert simulate(based, CHAIN.droppable).peak_bytes == 105


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_playing_agrees_with_the_rules_event_by_event(
    nodes: list[Node], data: st.DataObject
) -> None:
    graph = step_graph(nodes)
    every = range(len(nodes))
    kept = frozenset(data.draw(st.sets(st.sampled_from(every))))
    positions = st.integers(NEVER, len(nodes))
    holds = data.draw(st.dictionaries(st.sampled_from(every), positions))
    holds = {each: at for each, at in holds.items() if each not in kept}
    ours = simulate(graph, kept, holds)
    theirs = naive.play(graph, kept, holds)
    assert ours.calls == len(theirs.calls)
    assert ours.seconds == pytest.approx(sum(nodes[call].seconds for call in theirs.calls))
    known = all(at != NEVER for at in ours.lasts.values())
    unread = any(each not in ours.lasts for each in (*kept, *holds))
    if known and not unread:
        assert ours.peak_bytes == theirs.peak
    else:  # it stays longer where its last reading cannot be told
        assert ours.peak_bytes >= theirs.peak


@settings(max_examples=30, deadline=None)
@given(graphs(), st.data())
def test_keeping_everything_that_is_read_computes_nothing(
    nodes: list[Node], data: st.DataObject
) -> None:
    graph = step_graph(nodes)
    more = data.draw(st.sets(st.sampled_from(range(len(nodes)))))
    assert simulate(graph, graph.droppable | more).seconds == 0.0


def test_seconds_and_flops_are_those_of_the_calls() -> None:
    graph = step_graph(graph_nodes(3, 12))
    outcome = simulate(graph, frozenset())
    assert outcome.seconds > 0
    assert outcome.flops == pytest.approx(outcome.seconds * 1e12)
