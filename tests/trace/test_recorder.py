"""Phases and categories of real training and inference programs."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ebbtide.trace.model import Category, Event, Trace
from ebbtide.trace.recorder import Recorder
from ebbtide.vgpu.virtual_gpu import VirtualGpu

WIDTH, BATCH = 64, 8
PARAMETERS = 4 * (WIDTH * WIDTH + WIDTH)  # bytes of one layer


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def _train(steps: int = 2, optimizer: Callable[..., Any] = torch.optim.AdamW) -> nn.Module:
    model = _model().cuda()
    stepper = optimizer(model.parameters(), lr=0.1)
    for _ in range(steps):
        data = torch.randn(BATCH, WIDTH).cuda()
        loss = model(data).square().mean()
        loss.backward()
        stepper.step()
        stepper.zero_grad()
    return model


def _record(program: Callable[[], object]) -> Trace:
    with VirtualGpu("l4") as gpu, Recorder(gpu) as recorder:
        kept = program()
    assert kept is not False
    return recorder.trace(origin="test")


@pytest.fixture(scope="module")
def trained() -> Trace:
    """Two steps of AdamW."""
    return _record(_train)


def _bytes_by_category(trace: Trace) -> Counter[Category]:
    found: Counter[Category] = Counter()
    sizes = zip(trace.allocs.category, trace.allocs.likely_bytes, strict=True)
    for category, size in sizes:
        found[Category(category)] += int(size)
    return found


def _phases(trace: Trace) -> list[tuple[str, int]]:
    return [(phase.name, phase.step) for phase in trace.phases]


def test_a_training_goes_through_its_phases(trained: Trace) -> None:
    assert _phases(trained) == [
        ("setup", 0), ("forward", 1), ("backward", 1), ("between", 1), ("optimizer", 1),
        ("between", 1), ("forward", 2), ("backward", 2), ("between", 2), ("optimizer", 2),
        ("between", 2),
    ]  # fmt: skip


def test_categories_by_hand(trained: Trace) -> None:
    found = _bytes_by_category(trained)
    assert found[Category.PARAMETER] == 2 * PARAMETERS
    # Made anew in each of two steps.
    assert found[Category.GRADIENT] == 2 * 2 * PARAMETERS
    assert found[Category.OPTIMIZER_STATE] == 2 * 2 * PARAMETERS
    assert found[Category.INPUT] == 2 * 4 * BATCH * WIDTH
    assert found[Category.KV_CACHE] == 0
    # Kept by each step: the outputs of relu and of the last layer, and a few numbers.
    kept = 2 * 2 * 4 * BATCH * WIDTH
    assert kept <= found[Category.ACTIVATION] <= kept + 64
    assert found[Category.WORKSPACE] > 0


def test_every_allocation_has_one_event_and_frees_follow(trained: Trace) -> None:
    kinds, args = trained.event_kind, trained.event_arg
    allocs = args[kinds == Event.ALLOC]
    assert list(allocs) == list(range(len(trained.allocs.likely_bytes)))
    alive: set[int] = set()
    for kind, arg in zip(kinds, args, strict=True):
        if kind == Event.ALLOC:
            alive.add(int(arg))
        elif kind == Event.FREE:
            alive.remove(int(arg))
    kept = {Category(trained.allocs.category[row]) for row in alive}
    assert kept <= {
        Category.PARAMETER, Category.OPTIMIZER_STATE, Category.WORKSPACE, Category.INPUT,
        Category.OTHER, Category.TEMPORARY, Category.ACTIVATION,
    }  # fmt: skip


def test_operations_carry_phase_module_and_line(trained: Trace) -> None:
    names = np.array(trained.names)[trained.ops.name]
    phases = np.array([phase.name for phase in trained.phases])[trained.ops.phase]
    modules = np.array(trained.modules)[trained.ops.module]
    assert set(phases[names == "aten::addmm"]) == {"forward"}
    assert set(modules[names == "aten::addmm"]) == {"0", "2"}
    assert set(phases[names == "aten::threshold_backward"]) == {"backward"}
    assert set(modules[names == "aten::threshold_backward"]) == {"1"}
    second = np.array([phase.step for phase in trained.phases])[trained.ops.phase] == 2
    optimizer = names[(phases == "optimizer") & second]
    assert len(optimizer) > 3
    assert all("_foreach_" in name for name in optimizer)
    assert any("test_recorder.py" in line for line in trained.lines)


def test_the_trace_says_where_it_comes_from(trained: Trace) -> None:
    assert trained.gpu == "l4"
    assert trained.torch_version == torch.__version__
    assert trained.meta == {"origin": "test"}
    assert trained.guesses == ()


def test_guesses_are_in_the_trace() -> None:
    def program() -> None:
        torch.randn(8, 8, device="cuda").sum().item()

    (guess,) = _record(program).guesses
    assert (guess.kind, guess.count) == ("item", 1)


def test_evaluation_without_training_is_inference() -> None:
    def program() -> None:
        model = _model().cuda().eval()
        with torch.no_grad():
            for _ in range(2):
                model(torch.randn(BATCH, WIDTH, device="cuda"))

    assert _phases(_record(program)) == [("setup", 0), ("inference", 1), ("inference", 2)]


def test_evaluation_after_training_stays_evaluation() -> None:
    def program() -> None:
        model = _train(1)
        model.eval()
        with torch.no_grad():
            model(torch.randn(BATCH, WIDTH, device="cuda"))

    assert ("evaluation", 2) in _phases(_record(program))


def test_accumulation_is_one_step() -> None:
    def program() -> None:
        model = _model().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
        optimizer.step()

    names = _phases(_record(program))
    assert names.count(("forward", 1)) == 3
    assert names.count(("backward", 1)) == 3
    assert names.count(("optimizer", 1)) == 1
    assert ("forward", 2) not in names


def test_of_two_optimizers_the_faster_counts() -> None:
    with VirtualGpu("l4") as gpu, Recorder(gpu) as recorder:
        models = [_model().cuda() for _ in range(2)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
        for index in (0, 0, 1, 0):
            models[index](torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
            optimizers[index].step()
        assert recorder.steps == 3
        assert recorder.forwards == 4
        assert recorder.trained


def test_listeners_hear_of_steps_and_forwards() -> None:
    steps: list[int] = []
    forwards: list[int] = []
    with VirtualGpu("l4") as gpu, Recorder(gpu) as recorder:
        recorder.on_step(steps.append)
        recorder.on_forward(forwards.append)
        _train(2)
    assert steps == [1, 2]
    assert forwards == [1, 2]


def test_an_error_ends_the_recording_cleanly() -> None:
    with VirtualGpu("l4") as gpu:
        with pytest.raises(ValueError, match="on purpose"), Recorder(gpu) as recorder:
            _train(1)
            raise ValueError("on purpose")
        assert gpu.places.on_root is None
        steps = recorder.steps
        _train(1)
        assert recorder.steps == steps == 1


def test_checkpointing_recomputes_in_backward() -> None:
    def program() -> None:
        model = _model().cuda()
        data = torch.randn(BATCH, WIDTH, device="cuda", requires_grad=True)
        out = torch.utils.checkpoint.checkpoint(model, data, use_reentrant=False)
        out.sum().backward()

    trace = _record(program)
    phases = np.array([phase.name for phase in trace.phases])[trace.ops.phase]
    names = np.array(trace.names)[trace.ops.name]
    # It stops early: what the last layer saved is there before that layer runs again.
    assert list(phases[names == "aten::addmm"]) == ["forward"] * 2 + ["backward"]


class _Cached(nn.Module):
    """Returns what a language model returns."""

    def forward(self, data: torch.Tensor) -> dict[str, Any]:
        keys = torch.cat([data, data], 1)
        return {"logits": data * 2, "past_key_values": [(keys, keys + 1)]}


def test_a_cache_between_forwards_is_one() -> None:
    def program() -> Any:
        with torch.no_grad():
            return _Cached()(torch.randn(BATCH, WIDTH, device="cuda"))

    found = _bytes_by_category(_record(program))
    assert found[Category.KV_CACHE] == 2 * 4 * BATCH * 2 * WIDTH


def test_buffers_are_buffers() -> None:
    def program() -> nn.Module:
        model = nn.BatchNorm1d(WIDTH).cuda()
        model(torch.randn(BATCH, WIDTH, device="cuda"))
        return model

    found = _bytes_by_category(_record(program))
    # Running mean and variance, and the count of batches.
    assert found[Category.BUFFER] == 2 * 4 * WIDTH + 8
    assert found[Category.PARAMETER] == 2 * 4 * WIDTH


def test_recording_holds_nothing() -> None:
    """A program that drops a model and its optimizer gets the memory back."""
    with VirtualGpu("l4") as gpu, Recorder(gpu) as recorder:
        for _ in range(3):
            model = _train(1)
            del model
            gc.collect()
            live = {gpu.tape.alloc_category[row] for row in gpu.mode.storages.live_rows()}
            assert not live & {Category.PARAMETER, Category.OPTIMIZER_STATE, Category.GRADIENT}
    found = _bytes_by_category(recorder.trace())
    assert found[Category.PARAMETER] == 3 * 2 * PARAMETERS
