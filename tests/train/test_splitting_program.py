"""What a loss is divided by, computed again for another batch without the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ebbtide.train.splitting_hollow import hollow_loss
from ebbtide.train.splitting_program import Program, place_of

LAYER = nn.Linear(4, 3)


def _noted(make: Callable[[Any], Tensor], batch: Any) -> tuple[Program, Tensor]:
    """The program of what `make` gives, noted with `batch`; and that."""
    found = []

    def objective(given: Any) -> Tensor:
        LAYER(torch.ones(2, 4))
        found.append(make(given))
        return LAYER(torch.ones(2, 4)).sum()  # type: ignore[no-any-return]

    _, seen = hollow_loss(objective, LAYER.parameters(), batch)
    return Program(seen.calls, batch), found[0]


def _again(make: Callable[[Any], Tensor], batch: Any, other: Any) -> Tensor:
    program, wanted = _noted(make, batch)
    assert program.repeatable()
    return _run(program, other)[place_of(wanted)]


def _run(program: Program, batch: Any) -> dict[Any, Tensor]:
    known = program.run(batch)
    assert known is not None
    return known


def _set_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 2] = 0
    y.view(-1)[1:].add_(1)
    return y.sum()


def _written_through_a_view(x: Tensor) -> Tensor:
    y = torch.zeros(2, 4)
    y[0].copy_(x)
    y[:, 1:3].mul_(3)
    return y.sum()


MAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "a count": lambda x: (x > 2).sum(),
    "a chain": lambda x: ((x * 2).softmax(0) + x.mean()).square().sum().sqrt(),
    "views": lambda x: x.view(2, 2).t().reshape(-1)[1:].sum(),
    "in place": _set_in_place,
    "through a view": _written_through_a_view,
    "the input": lambda x: x[2],
    "with constants": lambda x: (x + torch.arange(4) * torch.tensor(0.5)).sum(),
    "two results": lambda x: torch.sort(x).values[0] * torch.max(x, 0).indices,
}


@pytest.mark.parametrize("name", MAKES)
def test_it_gives_what_the_code_gives(name: str) -> None:
    make = MAKES[name]
    batch = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for other in (torch.tensor([4.0, 1.0, 5.0, 0.0]), torch.tensor([9.0, 9.0, -9.0, 9.0])):
        kept = other.clone()
        assert torch.equal(_again(make, batch, other), make(other))
        assert torch.equal(other, kept)
    assert batch.tolist() == [1, 2, 3, 4]


def test_it_has_only_the_calls_that_matter() -> None:
    def make(x: Tensor) -> Tensor:
        (x * 3).exp()
        count = (x > 2).sum()
        (x * 3).float()
        return count

    program, _ = _noted(make, torch.ones(4))
    assert [str(call.func) for call in program.calls] == ["aten.gt.Scalar", "aten.sum.default"]


def test_inputs_are_told_apart() -> None:
    """Views of one storage, and the same tensor twice."""
    whole = torch.arange(8.0)
    batch = {"a": whole[:4], "b": whole[4:], "c": whole[:4], "n": 3}
    other = {"a": torch.ones(4), "b": torch.ones(4) * 2, "c": torch.ones(4), "n": 3}
    make = lambda b: b["a"].sum() * 10 + b["b"].sum() + b["c"].sum() * 100  # noqa: E731
    assert _again(make, batch, other) == make(other)


def test_what_is_not_of_the_batch_is_read_as_it_is_then() -> None:
    scale = torch.tensor(2.0)
    program, wanted = _noted(lambda x: x.sum() * scale, torch.ones(4))
    scale.fill_(5)
    assert _run(program, torch.ones(4))[place_of(wanted)] == 20


def test_an_input_may_be_what_is_wanted() -> None:
    program, wanted = _noted(lambda b: b["n"], {"n": torch.tensor(3.0)})
    assert _run(program, {"n": torch.tensor(7.0)})[place_of(wanted)] == 7
    assert program.calls == []


def test_nothing_of_it_is_known_without_a_batch() -> None:
    constant = torch.tensor(3.0)
    program, wanted = _noted(lambda x: constant, torch.ones(4))
    assert place_of(wanted) not in _run(program, torch.ones(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x + torch.rand(4)).sum(),
        lambda x: x.mul_(2).sum(),
        lambda x: torch.bernoulli(x.clamp(0, 1)).sum(),
    ],
)
def test_what_does_more_than_compute_is_not_repeated(make: Callable[[Tensor], Tensor]) -> None:
    assert not _noted(make, torch.ones(4))[0].repeatable()


def test_what_is_random_elsewhere_does_not_matter() -> None:
    def make(x: Tensor) -> Tensor:
        torch.rand(3)
        return x.sum()

    assert _noted(make, torch.ones(4))[0].repeatable()


def test_a_counter_outside_is_not_counted_again() -> None:
    calls = torch.zeros(())

    def make(x: Tensor) -> Tensor:
        calls.add_(1)
        return x.sum() * calls

    assert not _noted(make, torch.ones(4))[0].repeatable()
    assert calls == 0


def test_numbers_that_python_saw_have_to_be_the_same() -> None:
    def make(x: Tensor) -> Tensor:
        return x.sum() if x.max() > 3 else x.prod()

    program, wanted = _noted(make, torch.tensor([1.0, 4.0]))
    assert program.repeatable()
    assert _run(program, torch.tensor([5.0, 5.0]))[place_of(wanted)] == 10
    assert program.run(torch.tensor([2.0, 3.0])) is None


@pytest.mark.parametrize(
    ("look", "looks"),
    [
        (lambda x: x.tolist(), True),
        (lambda x: x.numpy(), True),
        (lambda x: torch.equal(x, x), True),
        (lambda x: x.nonzero(), True),
        (lambda x: x[x > 0], True),
        (lambda x: torch.unique(x), True),
        (lambda x: x.sum().item(), False),
        (lambda x: float(x.sum()), False),
        (lambda x: int(x.sum()), False),
        (lambda x: bool(x.sum() > 0), False),
        (lambda x: len(x), False),
        (lambda x: x.shape[0] * x.numel(), False),
        (lambda x: x.sum() > 0, False),
        (lambda x: torch.where(x > 0, x, 0), False),
    ],
)
def test_looks_that_no_program_tells_are_noticed(
    look: Callable[[Tensor], Any], looks: bool
) -> None:
    def objective(x: Tensor) -> Tensor:
        look(x)
        return LAYER(torch.ones(2, 4)).sum()  # type: ignore[no-any-return]

    _, seen = hollow_loss(objective, LAYER.parameters(), torch.ones(4))
    assert seen.by_value is looks
