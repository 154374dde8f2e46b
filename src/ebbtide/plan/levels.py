"""How long each storage is held, as one number: its level.

A higher level of the same storage never lets go of it earlier. From low to high: for readers
only; made again and then held from a position down; kept for the readers behind a position
first; kept from the forward pass on.
"""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide.plan.graph import StepGraph
from ebbtide.plan.simulate import NEVER, Outcome, simulate

_MOST = 1 << 24
"""More operations than any step has."""
Levels = Mapping[int, int]
ALWAYS = _MOST - 2
"""A position before which every reader is."""


def level(keeps: int | None, holds: int) -> int:
    """Kept for readers from `keeps` up (None for none), made again and held from `holds` down."""
    first = _MOST if keeps is None else keeps
    return (_MOST - first) * _MOST + holds + 1


KEPT = level(0, NEVER)
HELD = level(None, ALWAYS)
LENT = level(None, NEVER)


def parts(code: int) -> tuple[int | None, int]:
    """The two positions of a level: `keeps` and `holds`."""
    above, below = divmod(code, _MOST)
    return (None if above == 0 else _MOST - above), below - 1


def split(levels: Levels) -> tuple[frozenset[int], dict[int, int], dict[int, int]]:
    """Kept storages, and of the others `holds` and `keeps`, as `simulate` takes them."""
    kept, holds, keeps = set(), {}, {}
    for storage, code in levels.items():
        if code >= KEPT:
            kept.add(storage)
            continue
        first, then = parts(code)
        if first is not None:
            keeps[storage] = first
        holds[storage] = then
    return frozenset(kept), holds, keeps


def play(graph: StepGraph, levels: Levels) -> Outcome:
    """What `levels` come to; a storage without one is held while readers wait for it."""
    return simulate(graph, *split(levels))


def choices(graph: StepGraph) -> dict[int, list[int]]:
    """By storage, the levels that make a difference, from low to high."""
    index = graph.index
    above: list[set[int]] = [set() for _ in index.nbytes]
    for use in index.uses:
        above[use.storage].add(use.position)
    for call in range(len(index.sources) - 1, -1, -1):
        for source in index.sources[call]:
            for made in index.changes[call]:
                if made != source:
                    above[source] |= above[made]
    found: dict[int, list[int]] = {}
    for each, calls in enumerate(index.made_by):
        if not calls or each in index.fixed or not above[each]:
            continue
        holds = [NEVER, *sorted(above[each])]
        own = sorted({use.position for use in index.readers.get(each, ())})[1:]
        levels = [level(None, at) for at in holds]
        levels += [level(keeps, at) for keeps in own for at in holds if at < keeps]
        found[each] = [*sorted(levels), KEPT]
    return found
