"""A model on the CPU: real steps of a copy, measured."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ebbtide.fitting.cpu_peak import peak_of
from ebbtide.fitting.subject import Replay
from ebbtide.fitting.work import Work, bytes_of
from ebbtide.plan.decision import Decision
from ebbtide.plan.graph import StepGraph
from ebbtide.train.carry_out import carried_out
from ebbtide.train.live_survey import LiveSurvey


class LiveSubject:
    """Steps of a copy of `work` on `batch`; the model, its state and all generators stay."""

    gaps = False

    def __init__(self, work: Work, batch: Any) -> None:
        self._work, self._batch = work, batch

    def survey(self) -> StepGraph:
        """A step after one that made the optimizer's state."""
        with random_state_kept():
            copy = self._work.copied()
            copy.step(self._batch)
            copy.optimizer.zero_grad()
            survey = LiveSurvey(bytes_of(copy, self._batch))
            with survey.saved:
                copy.step(self._batch)
            return survey.graph()

    def replay(self, decision: Decision, limit_bytes: int) -> Replay:
        """A second step, under the profiler."""
        with random_state_kept():
            copy = self._work.copied()
            copy.step(self._batch)
            copy.optimizer.zero_grad()
            base = bytes_of(copy, self._batch)

            def step() -> None:
                with carried_out(decision):
                    copy.step(self._batch)

            peak = base + peak_of(step)
            return Replay(peak, peak <= limit_bytes)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """What is drawn inside is not missed outside: Python's, NumPy's and PyTorch's generators."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
