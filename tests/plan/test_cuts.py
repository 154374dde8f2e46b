from __future__ import annotations

from tests.plan.samples import even_chain

from ebbtide.plan.chain import chain_graph
from ebbtide.plan.cuts import all_cuts, narrow_cuts, spread
from ebbtide.plan.made import Node, step_graph


def _blocks(count: int) -> list[Node]:
    """Blocks that widen to three times the width and come back to one, with a residual."""
    nodes = [Node(nbytes=1, seconds=1.0)]
    for _ in range(count):
        at = len(nodes) - 1
        nodes += [
            Node(nbytes=3, seconds=1.0, reads=(at,), saves=(at,)),
            Node(nbytes=3, seconds=1.0, reads=(at + 1,), saves=(at + 1,)),
            Node(nbytes=1, seconds=1.0, reads=(at, at + 2), saves=(at + 2,)),
        ]
    return [*nodes, Node(nbytes=1, seconds=1.0, reads=(len(nodes) - 1,), saves=(len(nodes) - 1,))]


def test_a_cut_is_what_is_read_behind_it_of_what_was_made_before() -> None:
    cuts = all_cuts(step_graph(_blocks(1)))
    assert [sorted(cut.storages) for cut in cuts] == [[0], [0, 1], [0, 2], [3]]
    assert [cut.nbytes for cut in cuts] == [1, 4, 4, 1]
    assert [cut.call for cut in cuts] == [1, 2, 3, 4]


def test_every_output_of_a_chain_is_a_cut_but_the_last() -> None:
    assert [cut.storages for cut in all_cuts(chain_graph(even_chain(4)))] == [{0}, {1}, {2}]


def test_narrow_cuts_are_behind_the_blocks() -> None:
    cuts = narrow_cuts(step_graph(_blocks(5)))
    assert [sorted(cut.storages) for cut in cuts] == [[each] for each in range(0, 16, 3)]


def test_a_step_of_one_operation_has_no_cut() -> None:
    assert narrow_cuts(step_graph([Node(nbytes=1, seconds=1.0)])) == []


def test_spread_begins_at_the_last_cut() -> None:
    cuts = narrow_cuts(step_graph(_blocks(5)))
    assert spread(cuts, 1) == {15}
    assert spread(cuts, 3) == {3, 9, 15}
    assert spread(cuts, 6) == {0, 3, 6, 9, 12, 15}
    assert spread(cuts, 0) == frozenset()
