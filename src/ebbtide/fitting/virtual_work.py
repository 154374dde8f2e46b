"""A model that a user gave, in training on a virtual GPU: a copy without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ebbtide.fitting.work import Work, optimizer_on
from ebbtide.workloads.entry import mapped
from ebbtide.workloads.given import check_kinds, copy_without_data, eager, note_compiled


def building(work: Work, batch: Any) -> Callable[[], Callable[[], Any]]:
    """What builds a step of `work` on the virtual GPU that is on then."""

    def build() -> Callable[[], Any]:
        check_kinds(work.model)
        note_compiled(work.model, work.loss_fn)
        given = eager(work.model)
        model = copy_without_data(given).to("cuda")
        memo: dict[int, Any] = {
            id(one): other
            for one, other in zip(given.parameters(), model.parameters(), strict=True)
        }
        copy = Work(model, optimizer_on(work.optimizer, memo, state=False), work.loss_fn)

        def step() -> None:
            copy.step(mapped(batch, lambda tensor: tensor.to("cuda")))

        return step

    return build
