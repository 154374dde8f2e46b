from __future__ import annotations

import random
import time

from ebbtide.units import MiB
from ebbtide.vgpu.allocator import CachingAllocator


def test_a_hundred_thousand_events_take_about_a_second():
    """Loose on purpose: a tenfold slip shows, a busy machine does not."""
    rng = random.Random(0)
    sizes = [rng.randrange(1, rng.choice((4096, MiB, 64 * MiB))) for _ in range(50_000)]
    places = [rng.randrange(600) for _ in range(50_000)]
    allocator = CachingAllocator(None)
    live = []
    start = time.process_time()
    for size, place in zip(sizes, places, strict=True):
        live.append(allocator.malloc(size))
        if len(live) > 600:
            live[place], live[-1] = live[-1], live[place]
            allocator.free(live.pop())
    assert time.process_time() - start < 5
    assert allocator.memory_allocated() == sum(block.size for block in live)
