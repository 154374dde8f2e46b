from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.plan.samples import even_chain

from ebbtide.plan.chain import chain_graph
from ebbtide.plan.levels import ALWAYS, HELD, KEPT, LENT, choices, level, parts, play, split
from ebbtide.plan.made import Node, step_graph
from ebbtide.plan.simulate import NEVER, simulate

POSITION = st.integers(0, 10_000)


@given(st.none() | POSITION.map(lambda at: at + 1), st.just(NEVER) | POSITION)
def test_a_level_is_its_two_positions(keeps: int | None, holds: int) -> None:
    assert parts(level(keeps, holds)) == (keeps, holds)


def test_levels_are_in_the_order_of_how_long_they_hold() -> None:
    order = [LENT, level(None, 3), level(None, 7), HELD, level(9, NEVER), level(9, 4), level(5, 2)]
    assert [*order, KEPT] == sorted([*order, KEPT])
    assert parts(HELD) == (None, ALWAYS)


def test_split_says_what_simulate_takes() -> None:
    levels = {1: KEPT, 2: LENT, 3: level(None, 4), 4: level(6, 2)}
    assert split(levels) == (frozenset({1}), {2: NEVER, 3: 4, 4: 2}, {4: 6})


def test_play_is_simulate() -> None:
    graph = chain_graph(even_chain(6))
    assert play(graph, {1: KEPT, 3: level(None, 4)}) == simulate(graph, {1}, {3: 4})


def test_choices_are_the_readers_of_a_storage_and_of_what_is_made_from_it() -> None:
    graph = chain_graph(even_chain(4))
    found = choices(graph)
    assert found[2] == [LENT, level(None, 3), KEPT]
    assert found[0] == [LENT, *(level(None, at) for at in (1, 2, 3)), KEPT]
    assert 3 not in found  # nothing reads the last one


def test_two_readers_can_be_told_apart() -> None:
    nodes = [
        Node(nbytes=1, seconds=1.0),
        Node(nbytes=1, seconds=1.0, reads=(0,), saves=(0,)),
        Node(nbytes=1, seconds=1.0, reads=(0, 1), saves=(0,)),
    ]
    found = choices(step_graph(nodes))
    assert level(2, NEVER) in found[0] and level(2, 1) in found[0]
    assert found[0] == sorted(found[0])
