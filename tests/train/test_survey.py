"""A step on the virtual GPU as a graph: what it says is what happens."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from tests.fitting.models import chain, images
from torch import Tensor, nn
from torch.nn import functional as F

from ebbtide import VirtualGpu
from ebbtide.plan.choose import Choice
from ebbtide.plan.graph import Step, StepGraph
from ebbtide.plan.recompute import Recompute
from ebbtide.plan.simulate import simulate
from ebbtide.train.recomputing import Recomputing
from ebbtide.train.survey import BLOCK, Survey

Loss = Callable[[], Tensor]


class Encoder(nn.Module):
    """Attention, dropout and layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 3, enable_nested_tensor=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """``(N, T, 64)`` to the same."""
        y: Tensor = self.layers(x)
        return y


def chained() -> Loss:
    model, _, (x, y) = chain()
    model.cuda()
    return lambda: F.mse_loss(model(x.cuda()), y.cuda())


def pictures() -> Loss:
    model, _, (x, y) = images()
    model.cuda()
    return lambda: F.cross_entropy(model(x.cuda()), y.cuda())


def encoded() -> Loss:
    model = Encoder().cuda()

    def loss() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(torch.randn(8, 64, 64, device="cuda")).float().square().mean()

    return loss


MODELS = {"chain": chained, "images": pictures, "encoder": encoded}


def surveyed(make: Callable[[], Loss]) -> StepGraph:
    with VirtualGpu("a100-80gb") as gpu:
        loss = make()
        loss().backward()
        survey = Survey(gpu)
        with survey.saved:
            loss().backward()
        return survey.graph()


@pytest.fixture(params=MODELS)
def make(request: pytest.FixtureRequest) -> Callable[[], Loss]:
    return MODELS[request.param]


def test_every_storage_begins_before_it_ends(make: Callable[[], Loss]) -> None:
    graph = surveyed(make)
    live: set[int] = set()
    saved: list[int] = []
    for kind, arg in graph.events:
        if kind == Step.ALLOC:
            assert arg not in live
            live.add(arg)
        elif kind == Step.FREE:
            live.remove(arg)
        elif kind == Step.SAVE:
            saved.append(arg)
        elif kind in (Step.USE, Step.RELEASE):
            assert arg in saved
    assert set(graph.saved) == set(saved)
    assert all(each.nbytes % BLOCK == 0 for each in graph.storages)


def test_calls_read_what_earlier_ones_made(make: Callable[[], Loss]) -> None:
    graph = surveyed(make)
    made: set[int] = set()
    for number, call in enumerate(graph.calls):
        assert {each.storage for each in call.sources} <= made
        made.update(call.makes)
        for storage in (*call.makes, *call.writes):
            assert number in graph.storages[storage].calls
    assert graph.droppable <= set(graph.saved)
    assert graph.droppable


def test_the_peak_is_simulated_to_the_byte(make: Callable[[], Loss]) -> None:
    """Against the same step on the virtual GPU, without hooks and with."""
    graph = surveyed(make)
    rng = random.Random(3)
    kept_sets = [graph.droppable, frozenset(sorted(graph.droppable)[::2])]
    kept_sets += [frozenset(each for each in graph.droppable if rng.random() < 0.5)]
    for kept in kept_sets:
        with VirtualGpu("a100-80gb") as gpu:
            loss = make()
            loss().backward()
            torch.cuda.reset_peak_memory_stats()
            with Recomputing(Recompute.of(graph, Choice(kept, simulate(graph, kept)))) as saved:
                loss().backward()
                assert saved.tape.lost is None
            measured = gpu.memory.max_memory_allocated()
        simulated = simulate(graph, kept).peak_bytes
        assert abs(simulated - measured) <= 0.01 * (measured - graph.base_bytes)


def test_modules_are_named(make: Callable[[], Loss]) -> None:
    modules = {call.module for call in surveyed(make).calls}
    assert len(modules) > 3


def test_of_several_passes_the_last_counts() -> None:
    with VirtualGpu("a100-80gb") as gpu:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).cuda()
        x = torch.randn(256, 64, device="cuda")
        survey = Survey(gpu)
        with survey.saved:
            for _ in range(3):
                model(x).sum().backward()
        graph = survey.graph()
    assert sum(call.name == "aten.addmm.default" for call in graph.calls) == 2


def test_what_follows_the_survey_is_not_in_it() -> None:
    with VirtualGpu("a100-80gb") as gpu:
        model = nn.Linear(64, 64).cuda()
        x = torch.randn(256, 64, device="cuda")
        survey = Survey(gpu)
        with survey.saved:
            model(x).sum().backward()
        big = torch.empty(1 << 30, device="cuda")
        graph = survey.graph()
        assert big.numel() == 1 << 30
    assert simulate(graph, graph.droppable).peak_bytes < 1 << 28
