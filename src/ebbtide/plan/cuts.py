"""Places where a forward pass is narrow: what must be kept there so that the rest can go."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.plan.graph import StepGraph


@dataclass(frozen=True, slots=True)
class Cut:
    """Between two calls of the forward pass.

    Attributes:
        call: the first call behind it.
        storages: what calls behind it read of what was made before it.
        nbytes: of those.
    """

    call: int
    storages: frozenset[int]
    nbytes: int


def narrow_cuts(graph: StepGraph) -> list[Cut]:
    """The cuts than which none near them is narrower.

    A transformer has one behind each residual addition, a convolutional network one behind
    each block.
    """
    cuts = all_cuts(graph)
    found: list[Cut] = []
    for i, cut in enumerate(cuts):
        if _narrowest(cuts, i) and (not found or cut.storages != found[-1].storages):
            found.append(cut)
    return found


def all_cuts(graph: StepGraph) -> list[Cut]:
    """A cut behind each call that makes a storage, as far as something is read behind it."""
    last: dict[int, int] = {}
    for number, call in enumerate(graph.calls):
        for source in call.sources:
            last[source.storage] = number
    open_: set[int] = set()
    cuts: list[Cut] = []
    ending: dict[int, list[int]] = {}
    for storage, number in last.items():
        ending.setdefault(number, []).append(storage)
    for number, call in enumerate(graph.calls):
        for made in call.makes:
            if last.get(made, -1) > number:
                open_.add(made)
        open_.difference_update(ending.get(number, ()))
        if open_ and call.makes:
            nbytes = sum(graph.storages[each].nbytes for each in open_)
            cuts.append(Cut(number + 1, frozenset(open_), nbytes))
    return cuts


def _narrowest(cuts: list[Cut], i: int, reach: int = 8) -> bool:
    """Whether no cut nearby is narrower."""
    near = cuts[max(0, i - reach) : i + 1 + reach]
    return min(each.nbytes for each in near) == cuts[i].nbytes


def spread(cuts: list[Cut], count: int) -> frozenset[int]:
    """The storages at `count` of the cuts, evenly spread from the last one back.

    The last is always among them: what is behind it, the loss, begins backward, and should
    not have to be made from further away.
    """
    step = len(cuts) / max(count, 1)
    chosen = {len(cuts) - 1 - int(i * step) for i in range(count)}
    return frozenset(storage for i in chosen for storage in cuts[i].storages)
