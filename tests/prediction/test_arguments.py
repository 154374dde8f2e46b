"""What `ebbtide.predict` refuses before it traces: each message names the argument."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UnknownGpuError, UsageError
from ebbtide.gpus import find
from ebbtide.prediction.arguments import (
    check_callable_alone,
    check_model,
    check_named,
    gpu_of,
    sizes_of,
)


def _loss(output: Any, batch: Any) -> Any:
    return output


def test_a_gpu_by_name_or_itself() -> None:
    assert gpu_of("l4") == find("l4")
    assert gpu_of(find("t4")) is find("t4")


@pytest.mark.parametrize(
    ("gpu", "shown"), [(3, "3"), (None, "None"), (["l4", "t4"], r"\['l4', 't4'\]")]
)
def test_no_gpu(gpu: object, shown: str) -> None:
    with pytest.raises(UsageError, match=f"^gpu: expected one name .* got {shown}"):
        gpu_of(gpu)


def test_an_unknown_gpu_has_near_names() -> None:
    with pytest.raises(UnknownGpuError, match="Did you mean"):
        gpu_of("rtx9999")


@given(st.lists(st.integers(min_value=1, max_value=10**6)))
def test_sizes_stay_as_they_are(sizes: list[int]) -> None:
    assert sizes_of(sizes) == tuple(sizes) == sizes_of(iter(sizes))


@given(st.lists(st.integers(1, 9)), st.integers(max_value=0), st.lists(st.integers(1, 9)))
def test_sizes_below_one_anywhere(before: list[int], bad: int, after: list[int]) -> None:
    with pytest.raises(UsageError, match=f"integers of at least 1, .* got {bad} among"):
        sizes_of([*before, bad, *after])


@pytest.mark.parametrize(
    ("batches", "shown"),
    [
        (8, "got 8"),
        ("8", "got '8'"),
        (None, "got None"),
        (("a",), "got 'a' among"),
        ((2.0,), "got 2.0 among"),
        ((True,), "got True among"),
        (([1],), "got a value of type list among"),
    ],
)
def test_no_sizes(batches: object, shown: str) -> None:
    with pytest.raises(UsageError, match=f"^batches: expected batch sizes, .*{shown}"):
        sizes_of(batches)


def test_a_string_with_what_it_takes() -> None:
    check_named("resnet18", 8, (), {"dtype": "bf16"})
    check_named("train.py", None, ["--lr", "1"], {})


@pytest.mark.parametrize(
    ("batch", "args", "options", "message"),
    [
        ([[1.5, 2.5]], (), {}, "^batch: 'resnet18' makes .* got a value of type list.$"),
        (True, (), {}, "^batch: .* got True"),
        ("8", (), {}, "^batch: .* got '8'"),
        (8, "--lr 3", {}, "^args: expected a sequence .* got '--lr 3'"),
        (8, (), {"speed": 1, "seq": 2}, "^There is no option speed. Options are: amp, batch"),
    ],
)
def test_a_string_with_what_goes_with_models(
    batch: object, args: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_named("resnet18", batch, args, options)


class Stepper:
    """An optimizer that is made already."""

    def step(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize(
    ("target", "optimizer", "loss", "message"),
    [
        (3, None, None, "^target: expected a torch.nn.Module, .* got 3"),
        (None, None, None, "^target: .* got None"),
        ([1], None, None, "^target: .* got a value of type list"),
        (print, Stepper(), None, r"^optimizer: .*`lambda p: .* not an instance of Stepper"),
        (print, "adamw", None, "^optimizer: .* not 'adamw'"),
        (print, Stepper, "mse", "^loss: expected a function .* got 'mse'"),
        (print, Stepper, Stepper, "^loss: .* got the class Stepper"),
    ],
)
def test_no_model_optimizer_or_loss(
    target: object, optimizer: object, loss: object, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_model(target, optimizer, loss)


def test_models_optimizers_and_losses() -> None:
    check_model(print, None, None)
    check_model(print, Stepper, _loss)
    check_model(print, lambda parameters: Stepper(), functools.partial(_loss, None))


class Sized:
    """A class that needs arguments."""

    def __init__(self, width: int, depth: int = 1) -> None:
        self.size = width, depth


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Sized, r"the class Sized cannot be called .*'width'.* `lambda: Sized\(\.\.\.\)`"),
        (_loss, "the function _loss cannot be called .*'output'"),
        (lambda width: width, r"the function <lambda> .* `lambda: build\(\.\.\.\)`"),
    ],
)
def test_functions_that_need_arguments(target: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_callable_alone(target)


@pytest.mark.parametrize("target", [functools.partial(Sized, 3), Stepper, lambda depth=1: depth])
def test_functions_that_need_none(target: object) -> None:
    check_callable_alone(target)
