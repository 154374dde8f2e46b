from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.samples import chain_nodes, even_chain, graph_nodes, graphs
from tests.plan.schedules import least_seconds

from ebbtide.errors import UsageError
from ebbtide.plan.chain import chain_graph
from ebbtide.plan.checkmate import MOST_CALLS, operations, optimum, relaxed, stages_of
from ebbtide.plan.made import Node, step_graph
from ebbtide.plan.simulate import NEVER, simulate


@pytest.mark.parametrize("seed", range(16))
def test_small_chains_cost_what_brute_force_finds(seed: int) -> None:
    nodes = chain_nodes(seed, 2 + seed % 6)
    graph = chain_graph(nodes)
    most = simulate(graph, graph.droppable).peak_bytes
    for budget in range(most // 3, most + 1, max(most // 5, 1)):
        found, best = optimum(graph, budget), least_seconds(nodes, budget)
        assert found.closed
        assert (found.seconds is None) == (best is None)
        if best is not None:
            assert found.seconds == pytest.approx(best, rel=1e-3)
            assert found.bound <= best + 1e-3 * max(best, 1)
            assert found.gap == pytest.approx(0.0, abs=1e-3)


@settings(max_examples=25, deadline=None)
@given(graphs(3, 8), st.data())
def test_no_choice_that_can_be_played_is_better(nodes: list[Node], data: st.DataObject) -> None:
    graph = step_graph(nodes)
    every = st.sampled_from(range(len(nodes)))
    kept = frozenset(data.draw(st.sets(every)))
    holds = data.draw(st.dictionaries(every, st.integers(NEVER, len(nodes))))
    holds = {each: at for each, at in holds.items() if each not in kept}
    played = simulate(graph, kept, holds)
    found = optimum(graph, played.peak_bytes)
    assert found.seconds is not None
    assert found.seconds <= played.seconds * (1 + 1e-4) + 1e-6
    low = relaxed(graph, played.peak_bytes)
    assert low is not None and low <= found.seconds + 1e-6


def test_a_budget_for_everything_costs_nothing() -> None:
    graph = step_graph(graph_nodes(4, 10))
    found = optimum(graph, simulate(graph, graph.droppable).peak_bytes)
    assert (found.seconds, found.gap, found.closed) == (0.0, 0.0, True)


def test_a_budget_for_nothing_is_proved_impossible() -> None:
    graph = chain_graph(even_chain(4))
    found = optimum(graph, 1)
    assert (found.seconds, found.closed, found.bound) == (None, True, float("inf"))
    assert found.gap is None
    assert relaxed(graph, 1) is None


def test_base_bytes_and_what_cannot_be_called_again_count() -> None:
    graph = chain_graph(even_chain(5, gradient=0))
    assert optimum(graph, 3).seconds == optimum(replace(graph, base_bytes=9), 12).seconds
    calls = tuple(replace(call, repeatable=False) for call in graph.calls)
    once = replace(graph, calls=calls)
    assert optimum(once, 5).seconds == 0.0
    assert optimum(once, 4).seconds is None


def test_the_way_found_is_given_stage_by_stage() -> None:
    graph = chain_graph(even_chain(5, gradient=0))
    found = optimum(graph, 3)
    assert found.seconds == 2.0
    assert len(found.kept) <= 2
    assert set(found.held) == {stage.event for stage in stages_of(graph)}


def test_uses_of_one_reader_are_one_stage() -> None:
    nodes = [
        Node(nbytes=1, seconds=1.0, gradient_bytes=1),
        Node(nbytes=1, seconds=1.0, reads=(0,), saves=(0,), saves_output=True, gradient_bytes=1),
        Node(nbytes=1, seconds=1.0, reads=(1,), saves=(1,), gradient_bytes=1),
    ]
    stages = stages_of(step_graph(nodes))
    assert [[use.storage for use in stage.uses] for stage in stages] == [[1], [0, 1]]


def test_a_step_that_saves_nothing_is_free() -> None:
    graph = step_graph([Node(nbytes=4, seconds=1.0)])
    assert optimum(graph, 4).seconds == 0.0
    assert optimum(graph, 3).closed and optimum(graph, 3).seconds is None


def test_large_steps_are_refused_with_the_number() -> None:
    graph = chain_graph(even_chain(MOST_CALLS + 1))
    assert operations(graph) == MOST_CALLS + 1
    with pytest.raises(UsageError, match=f"has {MOST_CALLS + 1} operations"):
        optimum(graph, 10)
