"""A model that a user gave, in training on a virtual GPU: a copy without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ebbtide.fitting.stepping import Stepping
from ebbtide.fitting.virtual import Maker
from ebbtide.fitting.work import Work, optimizer_on
from ebbtide.plan.decision import Decision
from ebbtide.workloads.entry import mapped
from ebbtide.workloads.given import check_kinds, copy_without_data, eager, note_compiled


def making(work: Work, batch: Any) -> Maker:
    """What builds steps of `work` on the virtual GPU that is on then."""

    @contextmanager
    def make(decision: Decision) -> Iterator[Callable[[], Any]]:
        check_kinds(work.model)
        note_compiled(work.model, work.loss_fn)
        given = eager(work.model)
        model = copy_without_data(given).to("cuda")
        memo: dict[int, Any] = {
            id(one): other
            for one, other in zip(given.parameters(), model.parameters(), strict=True)
        }
        copy = Work(model, optimizer_on(work.optimizer, memo, state=False), work.loss_fn)
        with Stepping(copy, decision, verify=False) as stepping:
            yield lambda: stepping.step(mapped(batch, lambda tensor: tensor.to("cuda")))

    return make
