"""Measure what a step holds on the CPU, with PyTorch's profiler."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

# What the profiler says on stderr of its own work, whatever it is asked not to.
_NOISE = (b"USDT:", b"Memory block of unknown size was allocated before the profiling started")


def peak_of(step: Callable[[], object]) -> int:
    """The most bytes that `step` holds at once on the CPU beyond what was there before."""
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    inner = profiler.profiler
    if inner is None:
        return 0
    events = [each for each in inner.kineto_results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: each.start_ns())
    held = peak = 0
    for each in events:
        held += each.nbytes()
        peak = max(peak, held)
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's own lines from stderr; all others come when it is over."""
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            kept.seek(0)
            for line in kept:
                if not any(each in line for each in _NOISE):
                    os.write(2, line)
