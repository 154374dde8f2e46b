"""Dropping saved tensors changes nothing: loss, gradients, buffers, random state, bit for bit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ebbtide.train.saved import SavedTensors
from ebbtide.train.tape import Tape

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(3))
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(4))
Forward = Callable[[nn.Module, Tensor], Tensor]
DROPS: dict[str, Callable[[tuple[int, int]], bool]] = {
    "nothing": lambda place: False,
    "everything": lambda place: True,
    "every other": lambda place: place[0] % 2 == 0,
    "two of three": lambda place: place[0] % 3 != 0,
    "late ones": lambda place: place[0] > 6,
}


def _call(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x)
    return output


def _steps(
    make: Callable[[], nn.Module],
    x: Tensor,
    forward: Forward,
    drop: Callable[[tuple[int, int]], bool] | None,
) -> list[Tensor]:
    """Loss, gradients and buffers of three steps, and the random state at the end."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Tensor] = []
    for _ in range(3):
        optimizer.zero_grad()
        given = x.clone()
        if drop is None:
            loss = forward(model, given).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            tape = Tape(drop)
            with SavedTensors(tape):
                loss = forward(model, given).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
        seen.append(loss.detach())
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seen += [b.clone() for b in model.buffers()]
        optimizer.step()
    return [*seen, torch.get_rng_state()]


def _autocast(model: nn.Module, x: Tensor) -> Tensor:
    """Case T7: one layer in two regions."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return _call(model, _call(model, x)).float()


def _nested_autocast(model: nn.Module, x: Tensor) -> Tensor:
    """Case T8."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = _call(model, x)
        with torch.autocast("cpu", enabled=False):
            y = _call(model, y.float())
        return _call(model, y).float()


def _penalty(model: nn.Module, x: Tensor) -> Tensor:
    """Case T16: a gradient of a gradient."""
    x = x.requires_grad_()
    y = _call(model, x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.mean() + gradient.square().sum()


def _chunks(model: nn.Module, x: Tensor) -> Tensor:
    """Case T22: three views of one storage."""
    q, k, v = _call(model, x).chunk(3, -1)
    return torch.softmax(q @ k.T, -1) @ v


def _slices(model: nn.Module, x: Tensor) -> Tensor:
    h = torch.zeros(8, 16)
    h[:, :8] = _call(model, x)[:, :8]
    h[:, 8:] = torch.tanh(_call(model, x)[:, 8:])
    return h * h


def _transposed(model: nn.Module, x: Tensor) -> Tensor:
    """Case T21: the same storage straight and transposed."""
    a = _call(model, x)
    return a[:, :8] @ a[:, :8].t() + (a[:, :8].t() @ a[:, :8])


def _routed(model: nn.Module, x: Tensor) -> Tensor:
    """Case T11: where rows go depends on a bias that moves with each pass."""
    h = _call(model[0], x)  # type: ignore[index]
    chosen = h.sum(-1) + model.bias > 0  # type: ignore[operator]
    model.bias.add_(0.5)  # type: ignore[union-attr, operator]
    out = torch.zeros_like(h)
    out[chosen] = _call(model[1], h[chosen])  # type: ignore[index]
    return out + h


def _router() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model.register_buffer("bias", torch.zeros(1))
    return model


def _cached(model: nn.Module, x: Tensor) -> Tensor:
    """Case T13: a list that grows with each call."""
    cache: list[Tensor] = []
    for _ in range(3):
        cache.append(_call(model, x))
        x = torch.stack(cache).mean(0)
    assert len(cache) == 3
    return x


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor, Forward]] = {
    "linear layers": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)),
        X,
        _call,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)),
        X,
        _call,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3),
        ),
        IMAGES,
        _call,
    ),
    "batch norm in evaluation": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16).eval(), nn.Linear(16, 4)),
        X,
        _call,
    ),
    "spectral norm": (
        lambda: nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 4)
        ),
        X,
        _call,
    ),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(16, 16)), X, _call),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4)),
        X,
        _call,
    ),
    "activations in place": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(True), nn.Linear(16, 8), nn.ReLU(True)),
        X,
        _call,
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        X[None],
        _call,
    ),
    "recurrence": (
        lambda: nn.LSTM(16, 16, 2, dropout=0.3),
        X[:, None],
        lambda model, x: model(x)[0],
    ),
    "autocast": (lambda: nn.Linear(16, 16), X, _autocast),
    "nested autocast": (lambda: nn.Linear(16, 16), X, _nested_autocast),
    "gradient penalty": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)),
        X,
        _penalty,
    ),
    "chunks": (lambda: nn.Linear(16, 48), X, _chunks),
    "slices": (lambda: nn.Linear(16, 16), X, _slices),
    "transposed": (lambda: nn.Linear(16, 16), X, _transposed),
    "routing": (_router, X, _routed),
    "cache": (lambda: nn.Linear(16, 16), X, _cached),
}


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("name", MODELS)
def test_everything_is_as_without(name: str, drop: str) -> None:
    make, x, forward = MODELS[name]
    plain = _steps(make, x, forward, None)
    planned = _steps(make, x, forward, DROPS[drop])
    assert len(plain) == len(planned)
    assert all(torch.equal(a, b) for a, b in zip(plain, planned, strict=True))


def _backward(forward: Callable[[nn.Module], Tensor], drop: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    tape = Tape(DROPS[drop])
    with SavedTensors(tape):
        loss = forward(model).mean()
        loss.backward()  # type: ignore[no-untyped-call]
    return model


@pytest.mark.parametrize("drop", DROPS)
def test_an_edit_in_place_is_refused_as_pytorch_refuses_it(drop: str) -> None:
    """Case T24: with hooks of its own PyTorch checks nothing."""

    def edited(model: nn.Module) -> Tensor:
        a = _call(model, X)
        b = a * a
        a.mul_(10)
        return b

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _backward(edited, drop)


def test_nothing_is_left_of_a_forward_pass_without_backward() -> None:
    """Case T26."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    tape = Tape(DROPS["everything"])
    with SavedTensors(tape):
        output = model(X)
        storage = weakref.ref(output.untyped_storage())
        del output
    assert storage() is None


def test_nothing_is_left_of_an_error() -> None:
    def broken(model: nn.Module) -> Tensor:
        _call(model, X)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        _backward(broken, "everything")
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    plain = _steps(*MODELS["dropout"], None)
    assert all(
        torch.equal(a, b)
        for a, b in zip(plain, _steps(*MODELS["dropout"], DROPS["everything"]), strict=True)
    )


def test_live_tensors_do_not_grow_over_steps() -> None:
    """Case T18."""
    import gc

    make, x, forward = MODELS["transformer"]
    counts: list[int] = []
    torch.manual_seed(0)
    model = make()
    for _ in range(12):
        tape = Tape(DROPS["two of three"])
        with SavedTensors(tape):
            loss = forward(model, x).mean()
            loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
        del loss, tape
        gc.collect()
        counts.append(sum(issubclass(type(each), Tensor) for each in gc.get_objects()))
    assert counts[2] == counts[-1]


def test_dropped_memory_is_gone_after_the_forward_pass() -> None:
    made: list[Any] = []
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    model[1].register_forward_hook(
        lambda module, given, output: made.append(weakref.ref(output.untyped_storage()))
    )
    tape = Tape(DROPS["everything"])
    with SavedTensors(tape):
        loss = model(X).mean()
        assert made[0]() is None
        loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_after_a_failed_backward_the_next_step_is_planned_again() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, fails: bool) -> Tensor:
            ctx.fails = fails
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            if ctx.fails:
                raise ValueError("mine")
            return gradient, None

    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    tape = Tape(DROPS["everything"])
    with SavedTensors(tape) as saved:
        for fails in (True, False):
            hidden: Tensor = model(X)
            loss = Fails.apply(hidden, fails).square().mean()  # type: ignore[no-untyped-call]
            assert tape.recording
            assert saved.waiting > 0
            if fails:
                with pytest.raises(ValueError, match="mine"):
                    loss.backward()
            else:
                loss.backward()
            del loss, hidden
            assert saved.waiting == 0


def test_evaluation_between_steps_does_not_move_the_numbers() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    counts: list[list[int]] = []
    for evaluates in (False, True):
        tape = Tape(lambda place: True)
        counts.append([])
        with SavedTensors(tape):
            for _ in range(3):
                model(X).mean().backward()
                counts[-1].append(tape.count)
                if evaluates:
                    with torch.no_grad():
                        model.eval()(X)
                        model.train()
    assert counts[0] == counts[1]
    assert len(set(counts[0])) == 1


def test_a_pass_that_differs_is_kept_from_there_on() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    tape = Tape(DROPS["everything"], expected=["aten.t.default", "aten.addmm.default"])
    with SavedTensors(tape):
        loss = model(X).mean()
        assert tape.lost == (2, "aten.tanh.default")
        loss.backward()
