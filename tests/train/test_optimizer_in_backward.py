"""The step in backward: parameters, state and schedule of a plain step, bit for bit."""

from __future__ import annotations

import copy
import gc
import weakref
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
from ebbtide.train.optimizer_spent import SpentGradient, SpentGradientError
from ebbtide.train.optimizer_twin import OptimizerError

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 10, (8,), generator=torch.Generator().manual_seed(2))
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
}


class Tied(nn.Module):
    """The embedding is the head, a layer is frozen, another unused; one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 10, bias=False)
        self.twice = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(self.twice(self.twice(x).tanh()))
        return self.embed(x + self.embed(x) @ self.embed.weight)


def _model() -> Tied:
    torch.manual_seed(0)
    return Tied()


def _loss(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def _states(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    return [
        *(p.detach().clone() for p in model.parameters()),
        copy.deepcopy(optimizer.state_dict()),
    ]


def _same(a: Any, b: Any) -> bool:
    """Equal bits, keys and order of keys."""
    if isinstance(a, Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _train(
    make: Callable[[Any], Optimizer],
    in_backward: bool,
    steps: int = 4,
    each: Callable[[nn.Module, Optimizer, int], None] | None = None,
) -> list[Any]:
    model = _model()
    optimizer = make(model.parameters())
    context = OptimizerInBackward(optimizer) if in_backward else None
    if context is not None:
        context.__enter__()
    for step in range(steps):
        if each is not None:
            each(model, optimizer, step)
        else:
            optimizer.zero_grad()
            _loss(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    if context is not None:
        context.__exit__(None, None, None)
    return _states(model, optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_a_plain_loop(name: str) -> None:
    assert _same(_train(OPTIMIZERS[name], False), _train(OPTIMIZERS[name], True))


def test_gradients_are_gone_one_by_one() -> None:
    """Never more than the gradients of two layers are there."""
    model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held: list[int] = []

    def count(*_: Any) -> None:
        held.append(sum(type(p.grad) is Tensor for p in model.parameters()))

    for layer in model:
        layer.register_full_backward_hook(count)
    with OptimizerInBackward(optimizer):
        model(X[:, :8].clone().requires_grad_()).sum().backward()
        assert all(isinstance(p.grad, SpentGradient) for p in model.parameters())
    assert len(held) == 6
    assert max(held) <= 1


def test_a_scheduler_is_obeyed() -> None:
    def make(parameters: Any) -> Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        optimizer.schedule = torch.optim.lr_scheduler.LambdaLR(  # type: ignore[attr-defined]
            optimizer, lambda epoch: 1 / (1 + epoch)
        )
        return optimizer

    def each(model: nn.Module, optimizer: Any, step: int) -> None:
        _loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        optimizer.schedule.step()  # would warn if `step` had not been called

    plain, ours = (_train(make, on, each=each) for on in (False, True))
    assert _same(plain, ours)
    assert ours[-1]["param_groups"][0]["lr"] == pytest.approx(0.02)


def test_a_scheduler_made_inside_is_obeyed() -> None:
    def run(on: bool) -> list[Any]:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with OptimizerInBackward(optimizer) if on else _nothing():
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            for _ in range(3):
                _loss(model).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        return _states(model, optimizer)

    assert _same(run(False), run(True))


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_groups_have_their_settings() -> None:
    def make(model: Tied) -> Optimizer:
        rest = [p for name, p in model.named_parameters() if not name.startswith("embed")]
        return torch.optim.AdamW(
            [{"params": rest, "weight_decay": 0.5}, {"params": model.embed.weight, "lr": 0.5}]
        )

    results = []
    for on in (False, True):
        model = _model()
        optimizer = make(model)
        with OptimizerInBackward(optimizer) if on else _nothing():
            for _ in range(3):
                _loss(model).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        results.append(_states(model, optimizer))
    assert _same(*results)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_accumulated_gradients_step_once(name: str) -> None:
    """Case T32, said in advance."""

    def run(on: bool) -> list[Any]:
        model = _model()
        optimizer = OPTIMIZERS[name](model.parameters())
        with OptimizerInBackward(optimizer, passes=3) if on else _nothing():
            for _ in range(2):
                for a, b in ((0, 3), (3, 6), (6, 8)):
                    _loss(model, X[a:b], Y[a:b]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        return _states(model, optimizer)

    assert _same(run(False), run(True))


def test_fewer_passes_than_announced_step_too() -> None:
    """The rest of an epoch."""

    def run(on: bool) -> list[Any]:
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters())
        with OptimizerInBackward(optimizer, passes=3) if on else _nothing():
            for passes in (2, 3, 1):
                for _ in range(passes):
                    _loss(model).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        return _states(model, optimizer)

    assert _same(run(False), run(True))


def test_held_passes_add_up() -> None:
    def run(on: bool) -> list[Any]:
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters())
        with OptimizerInBackward(optimizer) as in_backward:
            for _ in range(2):
                with in_backward.hold():
                    _loss(model, X[:3], Y[:3]).backward()  # type: ignore[no-untyped-call]
                with _nothing() if on else in_backward.hold():
                    _loss(model, X[3:], Y[3:]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        return _states(model, optimizer)

    assert _same(run(False), run(True))


def test_a_parameter_without_a_gradient_in_the_last_pass_steps() -> None:
    def run(on: bool) -> list[Any]:
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Linear(16, 10), nn.Linear(16, 10)])
        optimizer = torch.optim.AdamW(layers.parameters())
        with OptimizerInBackward(optimizer, passes=2) if on else _nothing():
            for _ in range(3):
                (_loss(layers[0]) + _loss(layers[1])).backward()  # type: ignore[no-untyped-call]
                _loss(layers[1]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        return _states(layers, optimizer)

    assert _same(run(False), run(True))


def test_accumulation_that_was_not_announced_is_an_error() -> None:
    """Case T32 as people write it: every pass would step."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with OptimizerInBackward(optimizer):
        _loss(model).backward()  # type: ignore[no-untyped-call]
        with pytest.raises(SpentGradientError, match=r"A second backward pass .*passes="):
            _loss(model).backward()  # type: ignore[no-untyped-call]


def test_a_forgotten_zero_grad_is_an_error() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with OptimizerInBackward(optimizer):
        _loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with pytest.raises(SpentGradientError, match="call zero_grad before the next step"):
            _loss(model).backward()  # type: ignore[no-untyped-call]


def test_clipping_by_norm_is_an_error() -> None:
    """Case T33: without an error the norm would be 0."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with OptimizerInBackward(optimizer):
        _loss(model).backward()  # type: ignore[no-untyped-call]
        with pytest.raises(SpentGradientError, match="Clipping by the norm"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_zero_grad_to_zeros_is_as_ever() -> None:
    def each(model: nn.Module, optimizer: Optimizer, step: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        _loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    make = OPTIMIZERS["Adam amsgrad"]
    assert _same(_train(make, False, each=each), _train(make, True, each=each))


def test_a_closure() -> None:
    def each(model: nn.Module, optimizer: Optimizer, step: int) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = _loss(model)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        found = optimizer.step(closure) if step % 2 else optimizer.step(closure=closure)
        assert found > 0

    make = OPTIMIZERS["AdamW"]
    assert _same(_train(make, False, each=each), _train(make, True, each=each))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_sparse_gradients() -> None:
    def run(on: bool, make: Callable[[Any], Optimizer]) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=True))
        optimizer = make(model.parameters())
        with OptimizerInBackward(optimizer) if on else _nothing():
            for _ in range(3):
                model(Y).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return _states(model, optimizer)

    for make in (torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad):
        assert _same(run(False, make), run(True, make))
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        run(True, torch.optim.AdamW)


def test_state_dicts_go_both_ways() -> None:
    model, other = _model(), _model()
    optimizer, plain = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, other))
    with OptimizerInBackward(optimizer):
        for _ in range(2):
            _loss(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        other.load_state_dict(model.state_dict())
        optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
        for m, o in ((model, optimizer), (other, plain)):
            _loss(m).backward()  # type: ignore[no-untyped-call]
            o.step()
            o.zero_grad()
    assert _same(_states(model, optimizer), _states(other, plain))


def test_groups_added_and_layers_unfrozen_inside() -> None:
    def each(model: nn.Module, optimizer: Optimizer, step: int) -> None:
        assert isinstance(model, Tied)
        if step == 1:
            model.frozen.weight.requires_grad_(True)
        if step == 2:
            optimizer.add_param_group({"params": [model.extra], "lr": 0.5})
        optimizer.zero_grad()
        (_loss(model) + model.extra.square().sum()).backward()
        optimizer.step()
        if step == 3 and spent is not None:
            spent.append(isinstance(model.extra.grad, SpentGradient))
            spent.append(isinstance(model.frozen.weight.grad, SpentGradient))

    def run(on: bool) -> list[Any]:
        model = _model()
        model.extra = nn.Parameter(torch.ones(3))  # type: ignore[assignment]
        optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if n != "extra"])
        with OptimizerInBackward(optimizer) if on else _nothing():
            for step in range(4):
                each(model, optimizer, step)
        return _states(model, optimizer)

    spent: list[bool] | None = None
    plain = run(False)
    spent = []
    assert _same(plain, run(True))
    assert spent == [True, True]


def test_step_hooks_of_others_run_once_a_step() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    ran = []
    optimizer.register_step_post_hook(lambda *given: ran.append("mine"))
    with OptimizerInBackward(optimizer):
        for _ in range(3):
            _loss(model).backward()  # type: ignore[no-untyped-call]
            assert len(ran) == _
            optimizer.step()
            optimizer.zero_grad()
    assert ran == ["mine"] * 3


def test_pre_hooks_are_refused() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    handle = optimizer.register_step_pre_hook(lambda *given: None)
    with pytest.raises(OptimizerError, match=r"has 1 step pre-hook\(s\)"):
        OptimizerInBackward(optimizer).__enter__()
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert not optimizer._optimizer_step_post_hooks
    handle.remove()
    with OptimizerInBackward(optimizer):
        optimizer.register_step_pre_hook(lambda *given: None)
        _loss(model).backward()  # type: ignore[no-untyped-call]
        with pytest.raises(OptimizerError, match="registered on the optimizer after the plan"):
            optimizer.step()


def test_a_scaler_is_refused() -> None:
    optimizer = torch.optim.AdamW(_model().parameters())
    with pytest.raises(OptimizerError, match="GradScaler skips the whole step"):
        OptimizerInBackward(optimizer, scaler=torch.amp.GradScaler("cpu")).__enter__()
    with OptimizerInBackward(optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False)):
        pass


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    optimizer = torch.optim.AdamW(_model().parameters())
    with pytest.raises(OptimizerError, match="With 4 processes"):
        OptimizerInBackward(optimizer).__enter__()


def test_lbfgs_is_refused() -> None:
    optimizer = torch.optim.LBFGS(_model().parameters())
    with pytest.raises(OptimizerError, match="one direction for all"):
        OptimizerInBackward(optimizer).__enter__()


@pytest.mark.parametrize("passes", [0, -2])
def test_no_passes_are_refused(passes: int) -> None:
    optimizer = torch.optim.AdamW(_model().parameters())
    with pytest.raises(OptimizerError, match=f"passes is {passes}"):
        OptimizerInBackward(optimizer, passes=passes)


def _hooks(model: nn.Module, optimizer: Optimizer) -> list[int]:
    of_parameters = [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
    return [
        *of_parameters,
        len(optimizer._optimizer_step_pre_hooks),
        len(optimizer._optimizer_step_post_hooks),
    ]


def test_all_is_undone_on_exit_and_after_an_error() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    before, settings = _hooks(model, optimizer), dict(optimizer.__dict__)
    for error in (False, True):
        try:
            with OptimizerInBackward(optimizer):
                assert _hooks(model, optimizer) != before
                _loss(model).backward()  # type: ignore[no-untyped-call]
                if error:
                    raise ValueError("mine")
                optimizer.step()
        except ValueError:
            assert error
        assert _hooks(model, optimizer) == before
        assert all(p.grad is None for p in model.parameters())
        assert optimizer.__dict__.keys() == settings.keys()
        assert type(optimizer) is torch.optim.AdamW
    _loss(model).backward()  # type: ignore[no-untyped-call]
    assert all(type(p.grad) is Tensor for p in model.embed.parameters())


def test_an_error_in_backward_leaves_a_context_that_goes_on() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise ValueError("mine")

    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with OptimizerInBackward(optimizer):
        with pytest.raises(ValueError, match="mine"):
            _loss(nn.Sequential(model), Fails.apply(X.clone().requires_grad_())).backward()
        optimizer.zero_grad()
        _loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert optimizer.state[model.embed.weight]["step"] == 2


def test_within_itself_it_does_nothing() -> None:
    """The same context again, and another one of the same optimizer."""

    def run(on: bool) -> list[Any]:
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters())
        outer = OptimizerInBackward(optimizer) if on else _nothing()
        with outer:
            _loss(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            with OptimizerInBackward(optimizer) if on else _nothing():
                _loss(model).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
            if on:
                with outer:
                    pass
                assert _hooks(model, optimizer)[0] == 1
            _loss(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        assert _hooks(model, optimizer)[0] == 0
        return _states(model, optimizer)

    assert _same(run(False), run(True))


def test_it_may_be_entered_again() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    context = OptimizerInBackward(optimizer)
    for step in range(1, 3):
        with context:
            _loss(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert optimizer.state[model.embed.weight]["step"] == step


def test_nothing_is_kept_alive() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with OptimizerInBackward(optimizer):
        _loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    gone = weakref.ref(optimizer), weakref.ref(model.embed.weight)
    del model, optimizer
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_parameter_is_dropped_where_nobody_wants_its_step() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    start = [p.detach().clone() for p in model.parameters()]
    with OptimizerInBackward(optimizer) as in_backward:
        in_backward.ready = lambda parameter: parameter is model.embed.weight
        _loss(model).backward()  # type: ignore[no-untyped-call]
        assert model.twice.weight.grad is None
        assert isinstance(model.embed.weight.grad, SpentGradient)
    changed = [not torch.equal(a, b) for a, b in zip(start, model.parameters(), strict=True)]
    assert changed == [True] + [False] * (len(start) - 1)


def test_the_peak_is_lower_on_a_gpu() -> None:
    peaks = []
    for on in (False, True):
        with VirtualGpu("a100-80gb"):
            model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            with OptimizerInBackward(optimizer) if on else _nothing():
                for _ in range(2):
                    torch.cuda.reset_peak_memory_stats()
                    model(torch.ones(2, 1024, device="cuda")).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            peaks.append(torch.cuda.max_memory_allocated())
    layer = 4 * 1024 * 1024
    # Parameters, state and two of a workspace; gradients of all, or of two.
    assert peaks[0] > (8 * 3 + 2 + 8) * layer
    assert peaks[1] < (8 * 3 + 2 + 6) * layer


@given(
    seed=st.integers(0, 1000),
    used=st.lists(st.booleans(), min_size=4, max_size=4),
    passes=st.integers(1, 3),
)
@settings(max_examples=15)
def test_any_layers_may_have_gradients(seed: int, used: list[bool], passes: int) -> None:
    if not any(used):
        return

    def run(on: bool) -> list[Any]:
        torch.manual_seed(seed)
        layers = nn.ModuleList([nn.Linear(4, 4) for _ in used])
        optimizer = torch.optim.AdamW(layers.parameters(), weight_decay=0.1)
        with OptimizerInBackward(optimizer, passes=passes) if on else _nothing():
            for step in range(3):
                for _ in range(passes):
                    h = X[:, :4]
                    for i, layer in enumerate(layers):
                        h = layer(h) if used[(i + step) % 4] else h
                    if h.requires_grad:
                        h.square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return _states(layers, optimizer)

    assert _same(run(False), run(True))
