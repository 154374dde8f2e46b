"""What is held how long changes nothing but memory and time, and these are as was played."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ebbtide import VirtualGpu
from ebbtide.plan.choose import choose, smallest
from ebbtide.plan.graph import StepGraph
from ebbtide.plan.simulate import NEVER, Outcome, simulate
from ebbtide.train import rebuild
from ebbtide.train.holding import Holding, Place
from ebbtide.train.saved import SavedTensors
from ebbtide.train.survey import Survey
from ebbtide.train.tape import Tape
from ebbtide.train.values import Operation


class Block(nn.Module):
    """A residual block with an output that is read far behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.up(self.norm(x)))
        y: Tensor = x + self.down(torch.nn.functional.gelu(h) * h)
        return y


class Net(nn.Module):
    """Blocks, and a product of the first one's output with the last one's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = y = torch.sigmoid(self.first(x))
        for block in self.blocks:
            y = block(y)
        return (y * first).relu()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "blocks": (Net, (32, 64)),
    "attention": (lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (2, 16, 64)),
    "convolutions": (
        lambda: nn.Sequential(
            *[nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.Dropout(0.2)] * 3
        ),
        (2, 4, 16, 16),
    ),
}
Plan = tuple[frozenset[int], dict[int, int], dict[int, int]]


def _surveyed(name: str) -> StepGraph:
    make, shape = MODELS[name]
    with VirtualGpu("a100-80gb") as gpu:
        model, x = make().to("cuda"), torch.randn(shape, device="cuda")
        _step(model, x)
        model.zero_grad(set_to_none=True)
        survey = Survey(gpu)
        with survey.saved:
            model(x).square().mean().backward()
        return survey.graph()


def _step(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _context(graph: StepGraph, plan: Plan, lasts: dict[int, int]) -> SavedTensors:
    def placed(positions: dict[int, int]) -> dict[Place | None, int]:
        return {graph.storages[each].place: at for each, at in positions.items()}

    kept, holds, keeps = plan
    places = {graph.storages[each].place for each in kept}
    holding = Holding(holds=placed(holds), keeps=placed(keeps), lasts=placed(lasts))
    return SavedTensors(Tape(lambda place: place not in places), holding)


def _drawn(graph: StepGraph, seed: int) -> Plan:
    draw = random.Random(seed)
    made = [i for i, storage in enumerate(graph.storages) if storage.calls]
    share = draw.random() * 0.5
    kept = frozenset(each for each in made if draw.random() < share)
    rest = [each for each in made if each not in kept]
    often, calls = draw.random(), len(graph.calls)
    holds = {each: draw.randint(NEVER, calls) for each in rest if draw.random() < often}
    keeps = {each: draw.randint(0, calls) for each in rest if draw.random() < 0.2}
    return kept, holds, {each: at for each, at in keeps.items() if each in graph.droppable}


def _measured(name: str, graph: StepGraph, plan: Plan, lasts: dict[int, int]) -> int:
    """The peak of a step under a plan on the virtual GPU, in bytes."""
    make, shape = MODELS[name]
    with VirtualGpu("a100-80gb"):
        model, x = make().to("cuda"), torch.randn(shape, device="cuda")
        _step(model, x)
        model.zero_grad(set_to_none=True)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with _context(graph, plan, lasts):
            _step(model, x)
        return torch.cuda.max_memory_allocated() - before


def _played(graph: StepGraph, plan: Plan) -> Outcome:
    return simulate(graph, *plan)


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_the_one_that_was_played(name: str) -> None:
    """To the byte, but for gradients that a survey sees copied where a plain step does not.

    These make the same difference under every plan, and in the first model none.
    """
    graph = _surveyed(name)
    everything: Plan = (graph.droppable, {}, {})
    differences = []
    for plan in [everything, *(_drawn(graph, seed) for seed in range(6))]:
        outcome = _played(graph, plan)
        measured = _measured(name, graph, plan, dict(outcome.lasts))
        differences.append(outcome.peak_bytes - graph.base_bytes - measured)
    assert len(set(differences)) == 1 and differences[0] >= 0
    if name == "blocks":
        assert differences[0] == 0


def _trained(name: str, graph: StepGraph | None, seed: int) -> list[Tensor]:
    """Loss, gradients, buffers and random state of two steps, on real numbers."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    seen: list[Tensor] = []
    for _ in range(2):
        model.zero_grad()
        if graph is None:
            seen.append(_step(model, x))
        else:
            plan = _drawn(graph, seed)
            with _context(graph, plan, dict(_played(graph, plan).lasts)):
                seen.append(_step(model, x))
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seen += [b.clone() for b in model.buffers()]
    return [*seen, torch.get_rng_state()]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["blocks", "convolutions"])
def test_holding_changes_no_bit(name: str, seed: int) -> None:
    """The plan is of the virtual GPU's kernels; on the CPU other places are right as well."""
    graph = _surveyed(name)
    plain, planned = _trained(name, None, 0), _trained(name, graph, seed)
    assert len(plain) == len(planned)
    assert all(torch.equal(a, b) for a, b in zip(plain, planned, strict=True))


def test_a_choice_is_carried_out_within_its_budget() -> None:
    graph = _surveyed("convolutions")
    most = _played(graph, (graph.droppable, {}, {})).peak_bytes
    least = smallest(graph).outcome.peak_bytes
    assert least - graph.base_bytes < 0.9 * (most - graph.base_bytes)
    for budget in (least, (least + most) // 2):
        choice = choose(graph, budget)
        assert choice is not None
        plan = (choice.kept, choice.holds, choice.keeps)
        measured = _measured("convolutions", graph, plan, dict(choice.outcome.lasts))
        assert measured <= budget - graph.base_bytes


@pytest.mark.parametrize("position, expected", [(None, 1), (NEVER, 3), (0, 3), (1, 2), (2, 1)])
def test_what_passes_is_made_again_for_each_reader(
    position: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tanh`` has readers at 2 (the sine), 1 (the hyperbolic cosine) and 1 (its own output)."""
    made: list[str] = []
    call = rebuild._Making.call

    def counted(making: rebuild._Making, operation: Operation) -> None:
        made.append(operation.func.__name__)
        call(making, operation)

    monkeypatch.setattr(rebuild._Making, "call", counted)
    x = torch.randn(4, 4, requires_grad=True)
    holds = {} if position is None else {(0, 0): position}
    with SavedTensors(Tape(lambda place: True), Holding(holds=dict(holds))) as saved:
        saved.begin()
        y = x.tanh()
        z = y.cosh() + y.sin()
        del y
        z.sum().backward()  # type: ignore[no-untyped-call]
    assert made.count("tanh.default") == expected
    assert x.grad is not None
    plain = x.detach().clone().requires_grad_()
    w = plain.tanh()
    (w.cosh() + w.sin()).sum().backward()
    assert plain.grad is not None and torch.equal(x.grad, plain.grad)
