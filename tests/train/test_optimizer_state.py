"""State in host memory: the bits of a plain step, and the same state dict."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from ebbtide import VirtualGpu
from ebbtide.train.optimizer_in_backward import OptimizerInBackward
from ebbtide.train.optimizer_spent import SpentGradient
from ebbtide.train.optimizer_state import HostState
from ebbtide.train.optimizer_twin import OptimizerError

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 10, (8,), generator=torch.Generator().manual_seed(2))
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD without state": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p),
}


class Emulated(HostState):
    """Host memory apart from the device's, although both are RAM; what was left is poisoned."""

    moved: list[str]

    def __enter__(self) -> Emulated:
        if not self._depth and self._around is None:
            self.moved = []
        super().__enter__()
        return self

    def fetch(self, tensor: Tensor, device: torch.device) -> Tensor:
        self.moved.append("fetch")
        return tensor.clone()

    def store(self, tensor: Tensor, place: Tensor | None) -> Tensor:
        self.moved.append("store")
        kept = tensor.clone() if place is None else place.copy_(tensor)
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
        return kept


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 12), nn.Linear(12, 10))
    model[2].weight.requires_grad_(False)
    return model


def _backward(model: nn.Module) -> Tensor:
    loss = nn.functional.cross_entropy(model(X), Y)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _train(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        _backward(model)
        optimizer.step()


def _states(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    return [
        *(p.detach().clone() for p in model.parameters()),
        copy.deepcopy(optimizer.state_dict()),
    ]


def _same(a: Any, b: Any) -> bool:
    """Equal bits, dtypes, keys and order of keys."""
    if isinstance(a, Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("kind", [HostState, Emulated])
@pytest.mark.parametrize("chunk", [0, 600, 1 << 20])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_a_plain_loop(name: str, chunk: int, kind: type[HostState]) -> None:
    results = []
    for on in (False, True):
        model = _model()
        optimizer = OPTIMIZERS[name](model.parameters())
        with kind(optimizer, chunk_bytes=chunk) if on else _nothing():
            _train(model, optimizer)
            results.append(_states(model, optimizer))
    assert _same(*results)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_going_in_and_out_in_the_middle(name: str) -> None:
    results = []
    for on in (False, True):
        model = _model()
        optimizer = OPTIMIZERS[name](model.parameters())
        _train(model, optimizer, 2)
        with Emulated(optimizer) if on else _nothing():
            _train(model, optimizer, 2)
        _train(model, optimizer, 2)
        results.append(_states(model, optimizer))
    assert _same(*results)


def test_all_of_the_state_moves_at_each_step() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with Emulated(optimizer) as host:
        _train(model, optimizer, 1)
        assert host.moved == ["store"] * 15  # three tensors of five parameters
        host.moved.clear()
        _train(model, optimizer, 1)
        assert host.moved.count("fetch") == host.moved.count("store") == 15
        host.moved.clear()
    assert host.moved == ["fetch"] * 15


def test_host_tensors_stay_the_same_ones() -> None:
    """A pinned block is written to again, not made anew."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with Emulated(optimizer):
        _train(model, optimizer, 1)
        before = [id(t) for state in optimizer.state.values() for t in state.values()]
        _train(model, optimizer, 2)
        after = [id(t) for state in optimizer.state.values() for t in state.values()]
    assert before == after


def test_schedulers_frozen_parameters_and_a_round_trip() -> None:
    """Case T38."""
    results = []
    for on in (False, True):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with Emulated(optimizer) if on else _nothing():
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
            for _ in range(3):
                _train(model, optimizer, 1)
                schedule.step()
            saved = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict(), schedule.state_dict()], saved)
        saved.seek(0)
        loaded = torch.load(saved)
        other = _model()
        resumed = torch.optim.AdamW(other.parameters(), lr=0.1)
        with Emulated(resumed) if on else _nothing():
            again = torch.optim.lr_scheduler.CosineAnnealingLR(resumed, 5)
            other.load_state_dict(loaded[0])
            resumed.load_state_dict(loaded[1])
            again.load_state_dict(loaded[2])
            for m, o, s in ((model, optimizer, schedule), (other, resumed, again)):
                _train(m, o, 2)
                s.step()
            assert _same(_states(model, optimizer), _states(other, resumed))
            results.append(_states(other, resumed))
    assert _same(*results)
    assert results[1][-1]["param_groups"][0]["lr"] < 0.1
    assert list(results[1][-1]["state"]) == [0, 1, 3, 4, 5]  # 2 is frozen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loading_gives_what_torch_gives(name: str, dtype: torch.dtype) -> None:
    """From a float32 checkpoint into parameters of another dtype."""
    source = _model()
    trained = OPTIMIZERS[name](source.parameters())
    _train(source, trained)
    saved = copy.deepcopy(trained.state_dict())
    results = []
    for on in (False, True):
        optimizer = OPTIMIZERS[name](_model().to(dtype).parameters())
        with Emulated(optimizer) if on else _nothing():
            optimizer.load_state_dict(saved)
            results.append(copy.deepcopy(optimizer.state_dict()))
    assert _same(*results)


def test_what_was_loaded_is_a_copy() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    _train(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = copy.deepcopy(saved)
    with HostState(optimizer):
        optimizer.load_state_dict(saved)
        _train(model, optimizer)
    assert _same(saved, kept)


def test_a_state_dict_that_does_not_fit_is_refused_by_torch() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    other = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    with HostState(optimizer):
        with pytest.raises(ValueError, match="doesn't match the size"):
            optimizer.load_state_dict(other.state_dict())
        _train(model, optimizer)
    assert len(optimizer.state) == 5


def test_groups_added_later() -> None:
    results = []
    for on in (False, True):
        model = _model()
        extra = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW(model.parameters())
        with Emulated(optimizer) if on else _nothing():
            _train(model, optimizer)
            optimizer.add_param_group({"params": [extra], "lr": 0.5})
            extra.grad = torch.ones(3)
            optimizer.step()
        results.append([*_states(model, optimizer), extra.detach()])
    assert _same(*results)
    assert results[1][-1].tolist() != [1, 1, 1]


def test_gradients_are_there_after_the_step() -> None:
    """As hooks and logs of others find them."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(model[0].weight.grad))
    with HostState(optimizer):
        _backward(model)
        gradient = model[0].weight.grad
        optimizer.step()
        assert model[0].weight.grad is gradient
        assert seen == [gradient]


def test_clipping_and_a_pre_hook_come_before() -> None:
    results = []
    for on in (False, True):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters())

        def halve(optimizer: Any, args: Any, kwargs: Any) -> None:
            for p in optimizer.param_groups[0]["params"]:
                if p.grad is not None:
                    p.grad.mul_(0.5)

        optimizer.register_step_pre_hook(halve)
        with Emulated(optimizer) if on else _nothing():
            for _ in range(2):
                optimizer.zero_grad()
                _backward(model)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
        results.append(_states(model, optimizer))
    assert _same(*results)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("infinite", [False, True])
def test_a_scaler(fused: bool, infinite: bool) -> None:
    results = []
    for on in (False, True):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        with Emulated(optimizer) if on else _nothing():
            for step in range(3):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(X), Y)
                scaler.scale(loss).backward()
                if infinite and step == 1:
                    model[0].weight.grad.fill_(torch.inf)  # type: ignore[union-attr]
                scaler.step(optimizer)
                scaler.update()
        results.append([*_states(model, optimizer), scaler.get_scale()])
    assert _same(*results)
    assert results[1][-1] == (32 if infinite else 64)


def test_a_closure() -> None:
    results = []
    for on in (False, True):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters())

        def closure(model: nn.Module = model, optimizer: Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            return _backward(model)

        with Emulated(optimizer) if on else _nothing():
            losses = [optimizer.step(closure) for _ in range(3)]  # type: ignore[arg-type]
        results.append([*_states(model, optimizer), *losses])
    assert _same(*results)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_the_step_in_backward(name: str) -> None:
    results = []
    for on in (False, True):
        model = _model()
        optimizer = OPTIMIZERS[name](model.parameters())
        if on:
            with Emulated(optimizer) as host, OptimizerInBackward(optimizer, step=host.step):
                _train(model, optimizer)
                assert isinstance(model[0].weight.grad, SpentGradient)
                results.append(_states(model, optimizer))
        else:
            _train(model, optimizer)
            results.append(_states(model, optimizer))
    assert _same(*results)


def test_within_itself_it_does_nothing_and_all_is_undone() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    settings = set(optimizer.__dict__)
    hooks = [name for name in settings if name.endswith("_hooks")]
    context = Emulated(optimizer)
    with context, context, HostState(optimizer):
        _train(model, optimizer, 1)
    assert all(not getattr(optimizer, name) for name in hooks)
    assert set(optimizer.__dict__) - settings <= {"_zero_grad_profile_name"}
    context.moved.clear()
    _train(model, optimizer, 1)
    assert context.moved == []


def test_an_error_inside_leaves_the_state() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    _train(model, optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="mine"), Emulated(optimizer):
        raise ValueError("mine")
    assert _same(optimizer.state_dict(), before)
    assert not optimizer._optimizer_step_pre_hooks


def test_an_error_of_the_step_leaves_gradients() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True))
    optimizer = torch.optim.AdamW(model.parameters())
    with HostState(optimizer):
        model(Y).sum().backward()
        with pytest.raises(RuntimeError, match="does not support sparse gradients"):
            optimizer.step()
        assert model[0].weight.grad is not None


def test_lbfgs_and_a_negative_chunk_are_refused() -> None:
    with pytest.raises(OptimizerError, match="one direction for all"):
        HostState(torch.optim.LBFGS(_model().parameters())).__enter__()
    with pytest.raises(OptimizerError, match="chunk_bytes is -1"):
        HostState(torch.optim.AdamW(_model().parameters()), chunk_bytes=-1)


def test_host_bytes() -> None:
    model = nn.Linear(100, 3, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with HostState(optimizer) as host:
        assert host.host_bytes() == 0
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
        assert host.host_bytes() == 2 * 1200 + 4
        host.pinned = True  # torch rounds pinned blocks to powers of two
        assert host.host_bytes() == 2 * 2048 + 4


@pytest.mark.parametrize("fused", [False, True])
def test_the_state_is_not_on_the_gpu(fused: bool) -> None:
    """On a virtual GPU: what is there after the step, its peak, and where the state is."""
    held, peaks = [], []
    layer = 4 * 1024 * 1024
    for on in (False, True):
        with VirtualGpu("a100-80gb"):
            model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)]).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=fused)
            with HostState(optimizer, chunk_bytes=layer) if on else _nothing():
                for _ in range(2):
                    optimizer.zero_grad()
                    model(torch.ones(2, 1024, device="cuda")).sum().backward()
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    optimizer.step()
                held.append(torch.cuda.memory_allocated())
                peaks.append(torch.cuda.max_memory_allocated() - before)
                state = optimizer.state[model[0].weight]
                assert state["exp_avg"].device.type == ("cpu" if on else "cuda")
                stays = "cuda" if fused and not on else "cpu"
                assert state["step"].device.type == stays
            assert optimizer.state[model[0].weight]["exp_avg"].device.type == "cuda"
            assert optimizer.state[model[0].weight]["step"].is_cuda is fused
    assert held[0] - held[1] == pytest.approx(16 * layer, abs=16384)
    assert 2 * layer <= peaks[1] <= 4.1 * layer


def test_loading_on_a_gpu_does_not_bring_it_over() -> None:
    with VirtualGpu("a100-80gb"):
        model = nn.Linear(1024, 1024, bias=False).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        with HostState(optimizer):
            model(torch.ones(2, 1024, device="cuda")).sum().backward()
            optimizer.step()
            saved = optimizer.state_dict()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            optimizer.load_state_dict(saved)
            assert torch.cuda.max_memory_allocated() == before
            assert optimizer.state[model.weight]["exp_avg"].device.type == "cpu"
            optimizer.step()


@given(
    chunk=st.integers(0, 3000),
    used=st.lists(st.booleans(), min_size=5, max_size=5),
    name=st.sampled_from(list(OPTIMIZERS)),
)
@settings(max_examples=20)
def test_any_chunks_of_any_gradients(chunk: int, used: list[bool], name: str) -> None:
    results = []
    for on in (False, True):
        draw = torch.Generator().manual_seed(0)
        parameters = [nn.Parameter(torch.randn(i + 1, 50, generator=draw)) for i in range(5)]
        optimizer = OPTIMIZERS[name](parameters)
        with Emulated(optimizer, chunk_bytes=chunk) if on else _nothing():
            for step in range(3):
                for i, p in enumerate(parameters):
                    there = used[(i + step) % 5]
                    p.grad = torch.randn(p.shape, generator=draw) if there else None
                optimizer.step()
        results.append([*(p.detach() for p in parameters), optimizer.state_dict()])
    assert _same(*results)
