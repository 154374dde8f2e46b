"""The ages of what existed before the record began, as far as the record shows them.

From torch 2.12 on, age decides which of two free blocks of the same size is taken
(`TieBreak`). A snapshot does not say how old the segments are that were there before
the first event. Where the record shows such a choice between two of them, it also
shows which is the older one; from then on that is known, and must hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide.vgpu.allocator import Block
from ebbtide.vgpu.allocator.heap import Heap


class UnknownAges:
    """What is known about the order of the ages 1 to `count` in `heap`.

    Attributes:
        learned: how many choices were needed to know it.
    """

    def __init__(self, heap: Heap, count: int) -> None:
        self.learned = 0
        self._heap = heap
        self._count = count
        self._position = list(range(count + 1))  # of each thing that has an age, by its number
        self._number = list(range(count + 1))  # the thing at each position
        self._younger: dict[int, set[int]] = {}

    def learn(self, older: Block, younger: Block) -> bool:
        """Let `older` come before `younger` from now on.

        Returns:
            False if that is not open: an age is known, or what was learned contradicts it.
        """
        if not (0 < older.order <= self._count and 0 < younger.order <= self._count):
            return False
        first, second = self._number[older.order], self._number[younger.order]
        if first == second or self._reaches(second, first):
            return False
        self._younger.setdefault(first, set()).add(second)
        self.learned += 1
        self._reorder()
        return True

    def _reaches(self, start: int, goal: int) -> bool:
        waiting, seen = [start], {start}
        while waiting:
            for following in self._younger.get(waiting.pop(), ()):
                if following == goal:
                    return True
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return False

    def _reorder(self) -> None:
        """Number the ages anew: as before, but for what was learned."""
        before = list(self._number)
        done: list[int] = [0]
        placed: set[int] = set()
        older: dict[int, set[int]] = {}
        for first, seconds in self._younger.items():
            for second in seconds:
                older.setdefault(second, set()).add(first)
        for number in before[1:]:
            self._place(number, older, placed, done)
        self._number = done
        for position, number in enumerate(done):
            self._position[number] = position
        moved = [self._position[number] for number in before]
        for block in list(self._blocks()):
            if 0 < block.order <= self._count:
                block.order = moved[block.order]
        for sides in self._heap.pools.values():
            for pool in sides:
                for free in pool.free.values():
                    blocks = list(free)
                    for block in blocks:
                        free.remove(block)
                    for block in blocks:
                        free.add(block)

    def _place(
        self, number: int, older: dict[int, set[int]], placed: set[int], done: list[int]
    ) -> None:
        waiting = [number]
        while waiting:
            top = waiting[-1]
            missing = [one for one in older.get(top, ()) if one not in placed]
            if missing:
                waiting.extend(sorted(missing, key=self._position.__getitem__, reverse=True))
                continue
            waiting.pop()
            if top not in placed:
                placed.add(top)
                done.append(top)

    def _blocks(self) -> Iterator[Block]:
        yield from self._heap.active
        for sides in self._heap.pools.values():
            for pool in sides:
                yield from pool.cached()
                for unmapped in pool.unmapped.values():
                    yield from unmapped
