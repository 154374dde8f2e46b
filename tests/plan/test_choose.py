from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.samples import chain_nodes, even_chain, graph_nodes, graphs

from ebbtide.plan.bound import least
from ebbtide.plan.chain import chain_graph, solve, stages
from ebbtide.plan.checkmate import optimum
from ebbtide.plan.choose import choose, front, smallest
from ebbtide.plan.levels import play
from ebbtide.plan.made import Node, step_graph
from ebbtide.plan.nested import starts
from ebbtide.plan.repeats import classes
from ebbtide.plan.rounding import levels_of
from ebbtide.plan.simulate import simulate


def _layers(count: int) -> list[Node]:
    """Layers of a cheap wide part and a dear narrow one."""
    nodes = [Node(nbytes=4, seconds=1.0, gradient_bytes=4)]
    for _ in range(count):
        at = len(nodes) - 1
        nodes += [
            Node(nbytes=12, seconds=0.1, reads=(at,), saves=(at,), gradient_bytes=12),
            Node(nbytes=12, seconds=5.0, reads=(at + 1,), saves=(at + 1,), gradient_bytes=12),
            Node(nbytes=4, seconds=5.0, reads=(at, at + 2), saves=(at + 2,), gradient_bytes=4),
        ]
    last = len(nodes) - 1
    return [*nodes, Node(nbytes=1, seconds=1.0, reads=(last,), saves=(last,), gradient_bytes=1)]


def test_a_budget_for_everything_keeps_everything() -> None:
    graph = step_graph(_layers(4))
    most = simulate(graph, graph.droppable).peak_bytes
    choice = choose(graph, most)
    assert choice is not None
    assert choice.kept == graph.droppable
    assert (choice.outcome.seconds, choice.optimality_gap) == (0.0, 0.0)


def test_the_cheap_and_wide_is_dropped_first() -> None:
    graph = step_graph(_layers(4))
    choice = choose(graph, simulate(graph, graph.droppable).peak_bytes - 12)
    assert choice is not None
    assert choice.outcome.seconds == pytest.approx(0.1)


def test_no_budget_is_no_choice() -> None:
    assert choose(step_graph(_layers(4)), 10) is None


def test_bytes_that_are_there_throughout_are_part_of_the_budget() -> None:
    graph = step_graph(_layers(3))
    based = replace(graph, base_bytes=1000)
    here, there = choose(graph, 90), choose(based, 1090)
    assert here is not None and there is not None
    assert here.outcome.seconds == there.outcome.seconds


def test_the_cost_may_be_another() -> None:
    graph = step_graph(_layers(4))
    choice = choose(graph, 120, lambda outcome: outcome.calls)
    assert choice is not None and choice.optimality_gap is None


@settings(max_examples=25, deadline=None)
@given(graphs(3, 14), st.floats(0.4, 1.0))
def test_a_choice_is_what_playing_it_comes_to(nodes: list[Node], share: float) -> None:
    graph = step_graph(nodes)
    budget = int(simulate(graph, graph.droppable).peak_bytes * share)
    choice = choose(graph, budget, effort=30)
    if choice is None:
        return
    assert simulate(graph, choice.kept, choice.holds, choice.keeps) == choice.outcome
    assert choice.outcome.peak_bytes <= budget
    gap = choice.optimality_gap
    assert gap is not None and 0.0 <= gap <= 1.0


def test_the_same_is_chosen_every_time() -> None:
    nodes = graph_nodes(11, 18)
    budget = int(simulate(step_graph(nodes), step_graph(nodes).droppable).peak_bytes * 0.8)
    assert choose(step_graph(nodes), budget) == choose(step_graph(nodes), budget)


@pytest.mark.parametrize("seed", range(6))
def test_chains_are_within_two_percent_of_the_optimum(seed: int) -> None:
    nodes = chain_nodes(seed, 12 + 4 * seed)
    graph = chain_graph(nodes)
    most = simulate(graph, graph.droppable).peak_bytes
    for share in (0.8, 0.6, 0.45):
        plan = solve(stages(nodes), int(most * share))
        if plan is None:
            continue
        choice = choose(graph, int(most * share))
        assert choice is not None
        assert choice.outcome.seconds <= 1.02 * plan.seconds + 1e-9


@pytest.mark.parametrize("layers", [3, 12])
def test_layers_are_within_two_percent_of_the_optimum(layers: int) -> None:
    graph = step_graph(_layers(layers))
    most = simulate(graph, graph.droppable).peak_bytes
    for share in (0.9, 0.75):
        choice = choose(graph, int(most * share), exact_nodes=20)
        best = optimum(graph, int(most * share), 50)
        assert choice is not None and best.seconds is not None
        assert choice.outcome.seconds <= 1.02 * best.seconds + 1e-9


def test_a_larger_budget_never_costs_more() -> None:
    graph = step_graph(_layers(10))
    most = simulate(graph, graph.droppable).peak_bytes
    budgets = [int(most * share) for share in (1.0, 0.3, 0.5, 0.4, 0.6, 0.05, 0.8, 0.7, 0.45)]
    found = front(graph, budgets, effort=40)
    assert [each is None for each in found] == [budget < 0.2 * most for budget in budgets]
    known = sorted(
        (budget, each.outcome.seconds, each.outcome.peak_bytes)
        for budget, each in zip(budgets, found, strict=True)
        if each is not None
    )
    costs = [cost for _, cost, _ in known]
    assert costs == sorted(costs, reverse=True)
    assert all(peak <= budget for budget, _, peak in known)


@pytest.mark.parametrize("seed", range(8))
def test_the_smallest_peak_is_close_to_what_is_possible_at_all(seed: int) -> None:
    graph = step_graph(graph_nodes(seed, 9))
    choice = smallest(graph)
    peak = choice.outcome.peak_bytes
    assert simulate(graph, choice.kept, choice.holds, choice.keeps).peak_bytes == peak
    assert choose(graph, peak) is not None
    possible = next(b for b in range(1, peak + 1) if optimum(graph, b).seconds is not None)
    assert peak <= 1.15 * possible


def test_bounds_are_below_every_optimum_and_say_what_is_held() -> None:
    for seed in range(12):
        graph = step_graph(graph_nodes(seed, 10))
        most = simulate(graph, graph.droppable).peak_bytes
        for share in (0.95, 0.8, 0.65):
            best = optimum(graph, int(most * share))
            if best.seconds is not None:
                bound = least(graph, int(most * share))
                assert bound.seconds <= best.seconds * (1 + 1e-4) + 1e-6
                assert all(-1e-6 <= part <= 1 + 1e-6 for part in bound.held.values())


def test_the_bound_is_met_where_one_thing_is_dropped() -> None:
    graph = step_graph(_layers(4))
    most = simulate(graph, graph.droppable).peak_bytes
    assert least(graph, most).seconds == 0.0
    assert least(graph, most - 12).seconds == pytest.approx(0.1)
    assert least(step_graph([Node(nbytes=1, seconds=1.0)]), 0).seconds == 0.0


def test_equal_layers_are_of_the_same_classes() -> None:
    graph = step_graph(_layers(6))
    found = classes(graph)
    assert sorted(each for group in found for each in group) == sorted(graph.droppable)
    assert [2 + 3 * i for i in range(6)] in found
    assert [1 + 3 * i for i in range(6)] in found


def test_nested_starts_fit_chains_that_cuts_alone_do_not() -> None:
    graph = chain_graph(even_chain(30))
    budget = 8
    plain = [levels for levels in starts(graph, 0) if play(graph, levels).peak_bytes <= budget]
    nested = [
        levels for levels in starts(graph, budget) if play(graph, levels).peak_bytes <= budget
    ]
    assert not plain and nested


@pytest.mark.parametrize("seed", range(8))
def test_rounding_follows_the_exact_program_where_levels_can(seed: int) -> None:
    """On chains one level a storage is enough for most that the program finds."""
    nodes = chain_nodes(seed, 8)
    graph = chain_graph(nodes)
    budget = int(simulate(graph, graph.droppable).peak_bytes * 0.7)
    found = optimum(graph, budget)
    if found.seconds is None:
        return
    outcome = play(graph, levels_of(graph, found))
    assert outcome.seconds <= 1.25 * found.seconds + 1e-9
    assert levels_of(step_graph([Node(nbytes=1, seconds=1.0)]), found) == {}
