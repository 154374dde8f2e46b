from __future__ import annotations

import pytest
from tests.plan.samples import even_chain, graph_nodes

from ebbtide.plan.chain import chain_graph, solve, stages
from ebbtide.plan.levels import HELD, KEPT, LENT
from ebbtide.plan.made import step_graph
from ebbtide.plan.search import Search, Stepwise


def _search(budget: int, left: int = 2000) -> Search:
    graph = chain_graph(even_chain(8))
    return Search(graph, budget, lambda outcome: outcome.seconds, left)


def test_a_choice_is_played_once() -> None:
    search = _search(20, left=5)
    search.play({1: KEPT})
    search.play({1: KEPT})
    assert search.left == 4


def test_better_fits_and_costs_less() -> None:
    search = _search(9)
    kept = {each: KEPT for each in range(7)}
    assert search.fits(kept) and search.better(kept, None) and search.better(kept, {})
    assert not search.better({}, kept)
    assert not _search(3).better(kept, None)


def test_lowering_stops_as_soon_as_it_fits() -> None:
    stepwise = Stepwise(_search(7))
    kept = {each: KEPT for each in range(7)}
    found = stepwise.lowered(kept)
    assert found is not None and stepwise.search.fits(found)
    assert 0 < stepwise.search.price(found) <= 4.0
    assert stepwise.lowered(found) == found


def test_lowering_gives_up_where_nothing_is_left_to_lower() -> None:
    assert Stepwise(_search(1)).lowered({each: KEPT for each in range(7)}) is None


def test_raising_uses_what_is_free() -> None:
    stepwise = Stepwise(_search(100))
    assert stepwise.search.price({each: LENT for each in range(7)}) > 0
    raised = stepwise.raised({each: LENT for each in range(7)})
    assert stepwise.search.price(raised) == 0.0


def test_the_level_of_what_is_not_named() -> None:
    stepwise = Stepwise(_search(9))
    assert stepwise.at({}, 3) == HELD
    assert stepwise.at({3: LENT}, 3) == LENT
    assert stepwise.at({}, 7) == LENT  # the last output is not saved


@pytest.mark.parametrize("budget", [5, 6, 7, 8])
def test_even_chains_are_improved_to_the_optimum(budget: int) -> None:
    stepwise = Stepwise(_search(budget))
    begin = stepwise.lowered({each: KEPT for each in range(7)})
    begin = begin or stepwise.lowered({each: LENT for each in range(7)})
    assert begin is not None
    found = stepwise.improved(stepwise.raised(begin))
    best = solve(stages(even_chain(8)), budget)
    assert best is not None
    assert stepwise.search.price(found) <= 1.15 * best.seconds


@pytest.mark.parametrize("seed", range(5))
def test_improving_never_makes_it_worse(seed: int) -> None:
    graph = step_graph(graph_nodes(seed, 9))
    most = Search(graph, 0, lambda o: o.seconds, 1).play({e: KEPT for e in graph.droppable})
    search = Search(graph, int(most.peak_bytes * 0.8), lambda o: o.seconds, 1500)
    stepwise = Stepwise(search)
    begin = stepwise.lowered({each: LENT for each in stepwise.choices})
    if begin is None:
        return
    raised = stepwise.raised(begin)
    improved = stepwise.improved(raised)
    assert search.price(improved) <= search.price(raised) <= search.price(begin)
    assert search.fits(improved)


def test_a_search_ends_when_its_plays_are_used_up() -> None:
    search = _search(6, left=30)
    stepwise = Stepwise(search)
    stepwise.improved({each: LENT for each in range(7)})
    assert search.left > -30
