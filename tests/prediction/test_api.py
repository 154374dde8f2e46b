"""`ebbtide.predict` on models: the same figures whatever the caller is in the middle of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import ebbtide
from ebbtide.errors import TargetError, UsageError

WIDTH = 64
BATCH = torch.zeros(8, WIDTH)
OPTIMIZER = torch.optim.AdamW


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def _mean(output: Any, batch: Any) -> torch.Tensor:
    return output.mean()  # type: ignore[no-any-return]


def _train(model: Any, batch: Any = BATCH, **changed: Any) -> ebbtide.Prediction:
    given = {"optimizer": OPTIMIZER, "loss": _mean, "gpu": "t4", "curve": False}
    return ebbtide.predict(model, batch, **{**given, **changed})


@pytest.fixture(scope="module")
def plain() -> ebbtide.Prediction:
    return _train(_model())


@pytest.mark.parametrize(
    "mode",
    [
        torch.inference_mode,
        lambda: FakeTensorMode(allow_non_fake_inputs=True),
        lambda: FlopCounterMode(display=False),
    ],
)
def test_modes_of_the_caller(
    mode: Callable[[], AbstractContextManager[Any]], plain: ebbtide.Prediction
) -> None:
    inside = mode()
    with inside:
        grad = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        found = _train(_model(), torch.zeros(8, WIDTH))
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == grad
        kind = type(torch.zeros(1))
    assert found.ledger == plain.ledger
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes
    assert kind is (FakeTensor if isinstance(inside, FakeTensorMode) else torch.Tensor)
    if isinstance(inside, FlopCounterMode):
        assert inside.get_total_flops() == 0


def test_two_threads_leave_torch_as_it_was(plain: ebbtide.Prediction) -> None:
    found: list[ebbtide.Prediction] = []
    before = torch.cuda.is_available, nn.Module.to, torch.compile
    threads = [threading.Thread(target=lambda: found.append(_train(_model()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.ledger for each in found] == [plain.ledger] * 2
    assert (torch.cuda.is_available, nn.Module.to, torch.compile) == before


def _nested() -> nn.Module:
    model = nn.Sequential(torch.compile(nn.Linear(WIDTH, WIDTH)), nn.ReLU(), _model()[2])
    return torch.compile(model)  # type: ignore[return-value]


def _in_place() -> nn.Module:
    model = _model()
    model.compile()
    return model


class Decorated(nn.Module):
    """Its `forward` is compiled, not the module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _model()

    @torch.compile
    def forward(self, batch: torch.Tensor) -> Any:
        """Call what is inside."""
        return self.inner(batch)


@pytest.mark.parametrize(("make", "count"), [(_nested, 2), (_in_place, 1), (Decorated, 1)])
def test_compiled_models_are_eager(
    make: Callable[[], nn.Module], count: int, plain: ebbtide.Prediction
) -> None:
    compiled = make()
    found = _train(compiled, loss=torch.compile(_mean))
    assert found.ledger == plain.ledger
    guesses = {guess.kind: guess for guess in found.guesses}
    assert list(guesses) == ["compile"]
    assert "taken as eager" in guesses["compile"].text
    assert guesses["compile"].count == count + 1
    assert type(compiled) is type(make())
    assert all(type(parameter.data) is torch.Tensor for parameter in compiled.parameters())


def test_a_function_that_compiles_is_the_same_guess(plain: ebbtide.Prediction) -> None:
    found = _train(_nested)
    assert found.ledger == plain.ledger
    assert [(guess.kind, guess.count) for guess in found.guesses] == [("compile", 2)]


def test_a_path_is_its_string(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"There is no file '.*none\.py'"):
        ebbtide.predict(tmp_path / "none.py")
    with pytest.raises(UsageError, match="got a value of type Tensor"):
        ebbtide.predict(Path("resnet18"), BATCH)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loss": lambda output, batch: (1.0,)}, "tensor of one value, .* it returned tuple"),
        ({"loss": lambda output, batch: output}, r"tensor of shape \(8, 64\)"),
        ({"optimizer": lambda parameters: None}, "^optimizer: .* not NoneType"),
        ({"optimizer": torch.optim.SGD(_model().parameters(), 0.1)}, "an instance of SGD"),
        ({"loss": "mse"}, "^loss: .*'mse'"),
        ({"batch": 8}, "A model needs `batch`"),
        ({"batches": 8}, "^batches: "),
        ({"gpu": None}, "^gpu: "),
        ({"seq": 5}, "A model takes no seq"),
        ({"model": 3}, "^target: .*got 3"),
        ({"model": nn.Linear}, "the class Linear cannot be called without arguments"),
    ],
)
def test_wrong_arguments(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _train(**{"model": _model(), **changed})


def test_a_function_that_returns_an_old_model() -> None:
    model = _model()
    with pytest.raises(UsageError, match="was built before it was called. Pass the model itself"):
        _train(lambda: model)
    assert all(type(parameter.data) is torch.Tensor for parameter in model.parameters())
