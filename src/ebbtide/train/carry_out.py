"""Carry a decision out: the contexts of all its techniques."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ebbtide.plan.decision import Decision
from ebbtide.train.recomputing import Recomputing


@contextmanager
def carried_out(decision: Decision) -> Iterator[None]:
    """Every step taken inside is taken as `decision` says.

    Settings of the caching allocator are not changed here: they hold for a whole process.
    """
    with ExitStack() as stack:
        if decision.recompute is not None:
            stack.enter_context(Recomputing(decision.recompute))
        yield
