"""What surveys note of an operation, and the graph that they make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.plan.graph import Call, Source, Storage
from ebbtide.train.schema import name_of, repeatable

Place = tuple[int, int]


@dataclass(kw_only=True, slots=True)
class Called:
    """An operation of the forward pass.

    Attributes:
        number: in the forward pass.
        func: the overload.
        sources: places and versions that it read.
        wrote: places that it wrote in place; None for what was not made on the tape.
        seconds, flops: of it.
        scratch_bytes: the most that it held beside what it made.
        module: the path of the module that called it.
    """

    number: int
    func: Any
    sources: Sequence[tuple[Place, int]]
    wrote: Sequence[Place | None]
    seconds: float = 0.0
    flops: int = 0
    scratch_bytes: int = 0
    module: str = ""


def describe(
    called: Iterable[Called], numbers: Mapping[Place, int], sizes: Sequence[int]
) -> tuple[tuple[Call, ...], tuple[Storage, ...]]:
    """The calls and storages of a graph.

    A storage that an operation made or wrote which cannot be called again, or that was written
    together with another one, has no calls: it is never made again.

    Args:
        called: in order.
        numbers: the storage at each place.
        sizes: bytes of each storage, by number.
    """
    calls: list[Call] = []
    history: dict[int, list[int]] = {number: [place[0]] for place, number in numbers.items()}
    makes: dict[int, list[int]] = {}
    for (call, _), number in numbers.items():
        makes.setdefault(call, []).append(number)
    fixed: set[int] = set()
    for each in called:
        made = makes.get(each.number, [])
        found = [numbers.get(place) for place in each.wrote if place is not None]
        wrote = list(dict.fromkeys(number for number in found if number is not None))
        for number in wrote:
            if number not in made:
                history[number].append(each.number)
        if not repeatable(each.func) or len(wrote) > 1:
            fixed.update(made, wrote)
        calls.append(
            Call(
                name=name_of(each.func),
                seconds=each.seconds,
                flops=each.flops,
                sources=tuple(
                    Source(numbers[place], at) for place, at in each.sources if place in numbers
                ),
                makes=tuple(made),
                writes=tuple(number for number in wrote if number not in made),
                scratch_bytes=each.scratch_bytes,
                repeatable=repeatable(each.func),
                module=each.module,
            )
        )
    places = {number: place for place, number in numbers.items()}
    storages = (
        Storage(nbytes, places.get(i), () if i in fixed else tuple(history.get(i, ())))
        for i, nbytes in enumerate(sizes)
    )
    return tuple(calls), tuple(storages)
