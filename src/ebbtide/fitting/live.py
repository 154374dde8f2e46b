"""A model on the CPU: real steps of a copy, measured."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ebbtide.fitting.cpu_peak import peak_of
from ebbtide.fitting.stepping import Stepping
from ebbtide.fitting.subject import Replay
from ebbtide.fitting.work import Work, bytes_of, samples_of
from ebbtide.plan.decision import Decision
from ebbtide.plan.graph import StepGraph
from ebbtide.train.live_survey import LiveSurvey


class LiveSubject:
    """Steps of a copy of `work` on `batch`; the model, its state and all generators stay."""

    virtual = False
    steps = True

    def __init__(self, work: Work, batch: Any) -> None:
        self._work, self._batch = work, batch
        self.batch_size = samples_of(batch)

    def survey(self, decision: Decision) -> StepGraph:
        """A step after two that made the optimizer's state and were timed."""
        with random_state_kept():
            copy = self._work.copied()
            with Stepping(copy, decision) as stepping:
                stepping.step(self._batch)
                started = time.perf_counter()
                stepping.step(self._batch)
                seconds = time.perf_counter() - started
                copy.optimizer.zero_grad()
                survey = LiveSurvey(bytes_of(copy, self._batch))
                with survey.saved:
                    stepping.step(self._batch)
                return replace(survey.graph(), seconds=seconds)

    def replay(self, decision: Decision, limit_bytes: int) -> Replay:
        """A second step, under the profiler."""
        with random_state_kept():
            copy = self._work.copied()
            with Stepping(copy, decision) as stepping:
                stepping.step(self._batch)
                copy.optimizer.zero_grad()
                peak = bytes_of(copy, self._batch) + peak_of(lambda: stepping.step(self._batch))
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
