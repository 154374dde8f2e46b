"""A decision is carried out step after step, whatever happens between the steps."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from tests.fitting.models import Training, chain, images, same, state_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from ebbtide.fitting.cpu_peak import peak_of
from ebbtide.plan.choose import Choice
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.recompute import Recompute
from ebbtide.plan.simulate import simulate
from ebbtide.train.live_survey import LiveSurvey
from ebbtide.train.recomputing import Recomputing


def graph_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> StepGraph:
    survey = LiveSurvey()
    with survey.saved:
        F.mse_loss(model(batch[0]), batch[1]).backward()
    model.zero_grad()
    return survey.graph()


def keeping(graph: StepGraph, kept: Iterable[int]) -> Recompute:
    chosen = frozenset(kept)
    return Recompute.of(graph, Choice(chosen, simulate(graph, chosen)))


@pytest.fixture
def half() -> Recompute:
    """Keep every third of what the chain saves."""
    model, _, batch = chain()
    graph = graph_of(model, batch)
    return keeping(graph, sorted(graph.droppable)[::3])


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def three_steps(training: Training) -> None:
    model, optimizer, (x, y) = training
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def test_less_is_held_and_everything_is_the_same(half: Recompute) -> None:
    states, peaks = [], []
    for planned in (False, True):
        training = chain()
        model, optimizer, _ = training
        with Recomputing(half) if planned else nullcontext():
            peaks.append(peak_of(partial(three_steps, training)))
        states.append(state_of(model, optimizer))
    assert same(*states)
    assert peaks[1] < peaks[0] * 0.9


def test_the_peak_is_what_was_simulated() -> None:
    model, _, (x, y) = chain()
    graph = graph_of(model, (x, y))
    for part in (1, 2, 3, 5):
        kept = frozenset(sorted(graph.droppable)[::part])
        model.zero_grad()
        with Recomputing(keeping(graph, kept)):
            measured = peak_of(lambda: F.mse_loss(model(x), y).backward())
        simulated = simulate(graph, kept).peak_bytes
        assert abs(simulated - measured) < 0.01 * measured


def test_accumulated_gradients(half: Recompute) -> None:
    states = []
    for planned in (False, True):
        model, optimizer, (x, y) = chain()
        with Recomputing(half) if planned else nullcontext():
            for _ in range(4):
                (F.mse_loss(model(x), y) / 4).backward()
            optimizer.step()
        states.append(state_of(model, optimizer))
    assert same(*states)


def test_evaluation_and_lost_losses_between_steps(half: Recompute) -> None:
    model, _, (x, y) = chain()
    with Recomputing(half) as saved:
        for _ in range(3):
            F.mse_loss(model(x), y)  # thrown away
            with torch.no_grad():
                model.eval()(x)
            model.train()
            loss = F.mse_loss(model(x), y)
            assert saved.tape.lost is None
            assert saved.waiting > 0
            loss.backward()
            assert saved.waiting == 0


def test_a_retained_graph_is_passed_twice(half: Recompute) -> None:
    gradients = []
    for planned in (False, True):
        model, _, (x, y) = chain()
        with Recomputing(half) if planned else nullcontext():
            loss = F.mse_loss(model(x), y)
            loss.backward(retain_graph=True)
            loss.backward()
        gradients.append([each.grad for each in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))  # type: ignore[arg-type]


def test_another_pass_warns_once_and_is_right(half: Recompute) -> None:
    gradients = []
    for planned in (False, True):
        model, _, (x, y) = chain()
        with (
            warnings.catch_warnings(record=True) as seen,
            Recomputing(half) if planned else nullcontext(),
        ):
            warnings.simplefilter("always")
            for _ in range(2):
                F.mse_loss(torch.tanh(model[:3](x)), y).backward()  # type: ignore[index]
        assert len(seen) == planned
        assert all("is aten.tanh.default and was aten" in str(each.message) for each in seen)
        gradients.append([each.grad for each in model[:3].parameters()])  # type: ignore[index]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))  # type: ignore[arg-type]


def test_a_longer_pass_than_planned(half: Recompute) -> None:
    warnings.simplefilter("always")
    model, _, (x, y) = chain()
    with Recomputing(half), pytest.warns(UserWarning, match="is aten.tanh.default and was"):
        F.mse_loss(model(x), y).tanh().backward()


def test_a_longer_pass_that_saves_no_more_is_the_planned_one(half: Recompute) -> None:
    model, _, (x, y) = chain()
    with Recomputing(half):
        (F.mse_loss(model(x), y) * 2 + 1).backward()


def test_nothing_waits_for_the_garbage_collector(half: Recompute) -> None:
    """Operations in place are among what their own target was made by: a circle, if held."""
    model, _, (x, y) = chain()
    gc.collect()
    gc.disable()
    try:
        with Recomputing(half):
            held = []
            for _ in range(3):
                model.zero_grad()
                held.append(held_after(lambda: F.mse_loss(model(x), y).backward()))
    finally:
        gc.enable()
    assert held == [sum(each.nbytes for each in model.parameters())] * 3


def held_after(step: Callable[[], object]) -> int:
    """Bytes that `step` leaves."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    return sum(each.nbytes() for each in events if each.name() == "[memory]")


def test_batch_statistics_move_once() -> None:
    states = []
    for planned in (False, True):
        model, optimizer, (x, y) = images()
        survey = LiveSurvey()
        with survey.saved:
            F.cross_entropy(model(x), y).backward()
        recompute = keeping(survey.graph(), ())
        model, optimizer, (x, y) = images()
        with Recomputing(recompute) if planned else nullcontext():
            F.cross_entropy(model(x), y).backward()
        states.append(state_of(model, optimizer))
    assert same(*states)
