"""Functions that return a model: what they may return, and how they are stepped."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import BatchEncoding

from ebbtide.errors import TargetError, UsageError
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.entry import FunctionWorkload, batch_of, load_function, resized

Pair = namedtuple("Pair", "x y")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module and return its name; it is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)

    def write(text: str, name: str = "users_module") -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_in_the_working_directory(module: Callable[[str], str]) -> None:
    name = module("def build():\n    return 7\n")
    assert load_function(f"{name}:build")() == 7


def test_a_file_by_its_path(module: Callable[[str], str], tmp_path: Path) -> None:
    module("import neighbour\ndef build():\n    return neighbour.N\n")
    (tmp_path / "neighbour.py").write_text("N = 5\n")
    assert load_function(f"{tmp_path / 'users_module.py'}:build")() == 5


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("users_module:nothing", r"no function 'nothing'; it has: build\."),
        ("users_module:LIMIT", "no function 'LIMIT'"),
        ("no_such_module:build", "'no_such_module' cannot be imported: No module named"),
        ("no/such.py:build", "There is no file 'no/such.py'"),
        (":build", "is no `module:function`"),
        ("users_module:a b", "is no `module:function`"),
    ],
)
def test_what_cannot_be_found(module: Callable[[str], str], target: str, message: str) -> None:
    module("LIMIT = 3\ndef build():\n    pass\n")
    with pytest.raises(TargetError, match=message):
        load_function(target)


def test_errors_of_the_module_itself_come_through(module: Callable[[str], str]) -> None:
    name = module("raise ZeroDivisionError('here')\n")
    with pytest.raises(ZeroDivisionError):
        load_function(f"{name}:build")


# -- what they return


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (nn.Linear(1, 1), "it returned Linear"),
        ((nn.Linear(1, 1), None), "it returned 2 items"),
        ((nn.Linear(1, 1), None, 1, 2, 3), "it returned 5 items"),
        (None, "it returned NoneType"),
        ((4, None, torch.ones(1)), "a torch.nn.Module first, not int"),
        ((nn.Linear(1, 1), "adam", torch.ones(1)), "an optimizer or None second, not str"),
        ((nn.Linear(1, 1), None, torch.ones(1), 5), "a loss function fourth, not int"),
    ],
)
def test_what_is_no_workload(returned: Any, message: str) -> None:
    with pytest.raises(TargetError, match=f"m:f should return .*{message}"):
        FunctionWorkload(lambda: returned, None, "m:f")


def needs(width: int, depth: int, batch: int = 8) -> None:
    """Takes what nobody gives."""


def must_have(batch: int) -> Any:
    return nn.Linear(2, 2), None, torch.ones(batch, 2)


def test_arguments_that_nobody_gives() -> None:
    with pytest.raises(TargetError, match="needs values for width, depth"):
        FunctionWorkload(needs, None, "m:f")


def test_a_batch_without_a_default() -> None:
    with pytest.raises(UsageError, match="needs a batch size: give --batch"):
        FunctionWorkload(must_have, None, "m:f")
    assert FunctionWorkload(must_have, 3, "m:f").batch == 3


def test_extra_arguments_of_any_name_are_fine() -> None:
    def build(*args: Any, batch_size: int = 2, **rest: Any) -> Any:
        return nn.Linear(2, 2), None, torch.ones(batch_size, 2)

    assert FunctionWorkload(build, 5, "m:f").batch == 5
    assert FunctionWorkload(build, None, "m:f").batch == 2


def test_a_batch_that_the_function_does_not_take_is_made() -> None:
    workload = FunctionWorkload(lambda: (nn.Linear(2, 2), None, torch.ones(4, 2)), 9, "m:f")
    assert workload.batch == 9
    assert workload._data.shape == (9, 2)


# -- stepping, on the virtual GPU


class Seen(nn.Module):
    """Notes what it is called with."""

    def __init__(self, output: Callable[[torch.Tensor], Any] = lambda y: y) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.output = output
        self.calls: list[tuple[str, ...]] = []

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        self.calls.append((*(a.device.type for a in args), *sorted(kwargs)))
        return self.output(self.layer([*args, *kwargs.values()][0]))


def stepped(data: Any, output: Callable[..., Any] = lambda y: y, *loss: Any, **kwargs: Any) -> Seen:
    with VirtualGpu("l4"):
        model = Seen(output).cuda()
        optimizer = None if kwargs.get("inference") else torch.optim.SGD(model.parameters())
        workload = FunctionWorkload(lambda: (model, optimizer, data, *loss), None, "m:f", **kwargs)
        workload.step()
        workload.step()
    return model


@pytest.mark.parametrize(
    ("data", "call"),
    [
        (torch.ones(2, 3), ("cuda",)),
        ((torch.ones(2, 3), torch.ones(2)), ("cuda", "cuda")),
        ([torch.ones(2, 3)], ("cuda",)),
        (Pair(torch.ones(2, 3), torch.ones(2)), ("cuda", "cuda")),
        ({"x": torch.ones(2, 3), "mask": torch.ones(2)}, ("mask", "x")),
        (BatchEncoding({"input_ids": torch.ones(2, 3)}), ("input_ids",)),
    ],
)
def test_how_the_model_is_called(data: Any, call: tuple[str, ...]) -> None:
    assert stepped(data).calls == [call, call]


def test_the_target_is_for_the_loss() -> None:
    targets: list[tuple[int, ...]] = []

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        targets.append(tuple(batch[1].shape))
        return output.sum()

    data = (torch.ones(2, 3), torch.ones(2, 7))
    assert stepped(data, lambda y: y, loss).calls == [("cuda",)] * 2
    assert targets == [(2, 7)] * 2


@pytest.mark.parametrize(
    "output",
    [
        lambda y: y.sum(),
        lambda y: y,
        lambda y: SimpleNamespace(loss=y.mean(), logits=y),
        lambda y: {"loss": y.mean(), "logits": y},
        lambda y: (y.mean(), y),
    ],
)
def test_where_the_loss_is_found(output: Callable[[torch.Tensor], Any]) -> None:
    model = stepped(torch.ones(2, 3), output)
    assert len(model.calls) == 2
    assert model.layer.weight.grad is None  # stepped, and zeroed again


def test_an_output_without_a_loss() -> None:
    with pytest.raises(TargetError, match="returns str, in which no loss is found"):
        stepped(torch.ones(2, 3), lambda y: "fine")


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("made", [True, False])
def test_a_model_on_the_cpu_is_moved(cls: Any, made: bool) -> None:
    """Whether its optimizer is made already, or a class that is made afterwards."""
    with VirtualGpu("l4"):
        model = Seen(lambda y: y.sum())
        before = list(model.parameters())
        optimizer = cls(before, lr=0.1) if made else cls
        workload = FunctionWorkload(lambda: (model, optimizer, torch.ones(2, 3)), None, "m:f")
        workload.step()
        after = list(model.parameters())
        assert {p.device.type for p in after} == {"cuda"}
        assert all(one is other for one, other in zip(before, after, strict=True))
        held = [p for group in workload.optimizer.param_groups for p in group["params"]]
        assert all(one is other for one, other in zip(held, after, strict=True))
        state = [v for each in workload.optimizer.state.values() for v in each.values()]
        assert {v.device.type for v in state if torch.is_tensor(v) and v.dim()} <= {"cuda"}
        assert bool(state) == (cls is torch.optim.AdamW)
    assert model.calls == [("cuda",)]


def test_a_model_that_is_spread_stays_so() -> None:
    with VirtualGpu("l4"):
        model = nn.Sequential(nn.Linear(3, 3).cuda(), nn.Linear(3, 3))
        FunctionWorkload(lambda: (model, None, torch.ones(2, 3)), None, "m:f")
        assert [p.device.type for p in model.parameters()] == ["cuda", "cuda", "cpu", "cpu"]


@pytest.mark.parametrize(
    ("output", "loss", "count"),
    [
        (lambda y: y, (), 2),
        (lambda y: (y, y), (), 2),
        (lambda y: y.sum(), (), 0),
        (lambda y: y.sum()[None], (), 0),
        (lambda y: {"loss": y.mean(), "logits": y}, (), 0),
        (lambda y: y, (lambda y, batch: y.mean(),), 0),
    ],
)
def test_a_sum_in_place_of_a_loss_is_a_guess(
    output: Any, loss: tuple[Any, ...], count: int
) -> None:
    with VirtualGpu("l4") as gpu:
        model = Seen(output)
        data = torch.ones(2, 3)
        workload = FunctionWorkload(lambda: (model, torch.optim.SGD, data, *loss), None, "m:f")
        workload.step()
        workload.step()
    found = gpu.guesses.get("loss", ["", 0])
    assert found[1] == count
    assert found[0].startswith("No loss was given: the sum of the output") == bool(count)


def test_inference_has_no_gradients() -> None:
    grads: list[bool] = []

    def output(y: torch.Tensor) -> torch.Tensor:
        grads.append(y.requires_grad)
        return y

    stepped(torch.ones(2, 3), output, inference=True)
    assert grads == [False, False]


# -- batches

DATA = {"x": torch.ones(4, 2), "more": [torch.ones(4), (torch.ones(3), "text")], "n": 5}


def test_the_batch_of_nested_data() -> None:
    assert batch_of(DATA) == 4
    assert batch_of(({}, [3], torch.ones(6, 4))) == 6
    assert batch_of(BatchEncoding({"input_ids": torch.ones(2, 3)})) == 2


@pytest.mark.parametrize("data", [torch.tensor(3.0), "text", 4, {}, [[]], None])
def test_data_without_a_batch(data: Any) -> None:
    assert batch_of(data) is None


@given(st.integers(1, 50))
def test_resizing_changes_the_batch_and_nothing_else(batch: int) -> None:
    made = resized(DATA, batch)
    assert made["x"].shape == (batch, 2)
    assert made["more"][0].shape == (batch,)
    assert made["more"][1][0].shape == (3,)
    assert made["more"][1][1] == "text" and made["n"] == 5
    assert batch_of(made) == batch


def test_resizing_keeps_named_tuples() -> None:
    made = resized(Pair(torch.ones(2, 3), torch.ones(2)), 5)
    assert isinstance(made, Pair)
    assert (made.x.shape, made.y.shape) == ((5, 3), (5,))
