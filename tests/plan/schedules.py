"""Every way to carry out the backward pass of a small chain, by brute force."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ebbtide.plan.made import Node


def least_seconds(nodes: Sequence[Node], budget: int) -> float | None:
    """The least that must be computed again, over all schedules whatsoever.

    States are the stage whose backward is next and what is held; from each, one may run a
    stage whose input is held, let go of anything, or take the backward step.
    """
    count, size = len(nodes), [node.nbytes for node in nodes]
    queue = [
        (0.0, count - 1, held)
        for held in range(1 << max(count - 1, 0))
        if _forward_peak(nodes, held) <= budget
    ]
    heapq.heapify(queue)
    seen: set[tuple[int, int]] = set()
    while queue:
        seconds, j, held = heapq.heappop(queue)
        if (j, held) in seen:
            continue
        seen.add((j, held))
        if j < 0:
            return seconds
        there = sum(size[i] for i in range(count) if held >> i & 1) + nodes[j].gradient_bytes
        if j == 0 or held >> (j - 1) & 1:
            before = nodes[j - 1].gradient_bytes if j else 0
            if there + nodes[j].backward_bytes + before <= budget:
                rest = held & ~(1 << (j - 1)) if j else held
                heapq.heappush(queue, (seconds, j - 1, rest))
        for i in range(j):
            if held >> i & 1:
                heapq.heappush(queue, (seconds, j, held & ~(1 << i)))
            elif i == 0 or held >> (i - 1) & 1:
                if there + max(nodes[i].scratch_bytes, size[i]) <= budget:
                    heapq.heappush(queue, (seconds + nodes[i].seconds, j, held | 1 << i))
    return None


def _forward_peak(nodes: Sequence[Node], kept: int) -> int:
    peak = there = 0
    for i, node in enumerate(nodes):
        before = nodes[i - 1].nbytes if i and not kept >> (i - 1) & 1 else 0
        peak = max(peak, there + before + max(node.scratch_bytes, node.nbytes))
        there += node.nbytes if kept >> i & 1 else 0
    return peak
