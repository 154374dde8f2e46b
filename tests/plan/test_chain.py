from __future__ import annotations

import pytest
from tests.plan.samples import chain_nodes, even_chain
from tests.plan.schedules import least_seconds

from ebbtide.errors import UsageError
from ebbtide.plan.chain import chain_graph, solve, stages
from ebbtide.plan.made import Node
from ebbtide.plan.simulate import simulate


def _cells(seeds: range) -> list[tuple[list[Node], int]]:
    found = []
    for seed in seeds:
        nodes = chain_nodes(seed, 1 + seed % 8)
        graph = chain_graph(nodes)
        most = simulate(graph, graph.droppable).peak_bytes
        found += [(nodes, budget) for budget in range(most // 3, most + 1, max(most // 6, 1))]
    return found


def test_nothing_is_better_than_brute_force_and_nearly_everything_is_equal() -> None:
    """The rest holds a thing, lets it go and holds it again, which the recurrence leaves out."""
    equal = total = 0
    for nodes, budget in _cells(range(90)):
        plan, best = solve(stages(nodes), budget), least_seconds(nodes, budget)
        if best is None:
            assert plan is None
            continue
        total += 1
        assert plan is None or plan.seconds >= best - 1e-9
        equal += plan is not None and abs(plan.seconds - best) < 1e-9
    assert total > 150
    assert equal >= 0.92 * total


@pytest.mark.parametrize("count", range(1, 9))
def test_even_chains_are_solved_as_brute_force_solves_them(count: int) -> None:
    nodes = even_chain(count)
    for budget in range(1, count + 4):
        plan, best = solve(stages(nodes), budget), least_seconds(nodes, budget)
        assert (plan.seconds if plan is not None else None) == best


def test_what_is_planned_is_what_playing_it_comes_to() -> None:
    for nodes, budget in _cells(range(100, 130)):
        plan = solve(stages(nodes), budget)
        if plan is None:
            continue
        outcome = simulate(chain_graph(nodes), plan.kept, plan.held)
        assert outcome.seconds == pytest.approx(plan.seconds)
        assert outcome.peak_bytes <= budget


def test_even_chains_take_what_revolve_takes() -> None:
    """Griewank and Walther, 2000: with s checkpoints and r repetitions, C(s + r, s) stages.

    Ten stages and three checkpoints need 10 = C(5, 3): no stage is run more than twice again.
    """
    nodes = even_chain(11, gradient=0)
    plan = solve(stages(nodes), 4)
    assert plan is not None
    runs = simulate(chain_graph(nodes), plan.kept, plan.held).calls
    assert runs <= 2 * 10


def test_more_memory_never_costs_more() -> None:
    nodes = chain_nodes(7, 20)
    costs = [
        plan.seconds if (plan := solve(stages(nodes), budget)) is not None else float("inf")
        for budget in range(20, 160, 5)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1] == 0.0


def test_rounding_up_never_breaks_the_budget() -> None:
    nodes = chain_nodes(5, 12)
    for budget in (40, 60, 80):
        fine, coarse = solve(stages(nodes), budget), solve(stages(nodes), budget, unit_bytes=4)
        if coarse is None:
            continue
        assert fine is not None and fine.seconds <= coarse.seconds
        assert simulate(chain_graph(nodes), coarse.kept, coarse.held).peak_bytes <= budget


def test_there_is_no_plan_where_one_stage_does_not_fit() -> None:
    assert solve(stages(even_chain(3)), 1) is None
    assert solve(stages(even_chain(3)), -1) is None


@pytest.mark.parametrize("count, unit", [(0, 1), (3, 0)])
def test_an_empty_chain_or_unit_is_refused(count: int, unit: int) -> None:
    with pytest.raises(UsageError, match="at least one of each"):
        solve(stages(even_chain(count)), 10, unit_bytes=unit)
