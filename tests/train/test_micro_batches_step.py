"""Batches of a loop in micro-batches: checked once, planned as often as labels ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebbtide.train.micro_batches_step import MicroBatches
from ebbtide.train.optimizer_in_backward import OptimizerInBackward
from ebbtide.train.optimizer_state import HostState
from ebbtide.train.saved import SavedTensors
from ebbtide.train.splitting import CannotSplitError
from ebbtide.train.splitting_hollow import hollow_loss
from ebbtide.train.tape import Tape

_DRAW = torch.Generator().manual_seed(2)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10)).double()


def _batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 16, generator=draw).double()
    y = torch.randint(0, 10, (size,), generator=draw)
    y[torch.rand(size, generator=draw) < 0.4] = -100
    y[0] = 3
    return x, y


def _ce(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda b: F.cross_entropy(model(b[0]), b[1])


def _mse(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda b: model(b[0]).square().mean()


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Samples of each pass without arithmetic."""
    seen: list[int] = []

    def counted(objective: Any, parameters: Any, batch: Any) -> Any:
        seen.append(len(batch[0]))
        return hollow_loss(objective, parameters, batch)

    monkeypatch.setattr("ebbtide.train.micro_batches_plan.hollow_loss", counted)
    return seen


@pytest.mark.parametrize("make", [_ce, _mse])
def test_a_loop_is_the_same(make: Callable[[nn.Module], Callable[[Any], Tensor]]) -> None:
    """Batches of other sizes and labels, the last of fewer samples than parts."""
    whole, split = _model(), _model()
    plain = torch.optim.AdamW(whole.parameters(), lr=0.01)
    ours = torch.optim.AdamW(split.parameters(), lr=0.01)
    step = MicroBatches(make(split), split.parameters(), 4)
    for seed, size in enumerate([8, 8, 11, 8, 3, 1]):
        batch = _batch(size, seed)
        expected = make(whole)(batch)
        expected.backward()  # type: ignore[no-untyped-call]
        found = step(batch)
        assert torch.allclose(found, expected.detach())
        assert not found.requires_grad
        for optimizer in (plain, ours):
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9)


def test_labels_are_looked_at_for_each_batch(passes: list[int]) -> None:
    model = _model()
    step = MicroBatches(_ce(model), model.parameters(), 2, verify=False)
    x, _ = _batch(8, 0)
    weights = []
    for valid in ([1, 1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1, 1, 0]):
        labels = torch.where(torch.tensor(valid) > 0, 3, -100)
        step((x, labels))
        weights.append([part.weight for part in step.plan((x, labels))])
    assert passes == [8, 4]  # parts are alike
    assert weights[0] == pytest.approx([0.8, 0.2])
    assert weights[1] == pytest.approx([0.25, 0.75])


def test_shapes_alone_are_looked_at_once(passes: list[int]) -> None:
    model = _model()
    step = MicroBatches(_mse(model), model.parameters(), 2, verify=False)
    for seed in range(3):
        step(_batch(8, seed))
    assert passes == [8, 4]
    step(_batch(7, 0))
    assert passes == [8, 4, 7, 3]  # of parts of 4 and 3, those of 3 are new


def test_another_batch_is_not_the_first_one_again() -> None:
    model = _model()
    step = MicroBatches(_mse(model), model.parameters(), 2, verify=False)
    step.plan(_batch(8, 0))
    batch = _batch(8, 1)
    again = step.plan(batch)
    assert torch.equal(torch.cat([part.batch[0] for part in again]), batch[0])
    assert [part.weight for part in again] == pytest.approx([0.5, 0.5])


def test_what_is_no_tensor_may_matter(passes: list[int]) -> None:
    model = _model()
    step = MicroBatches(
        lambda b: b[2] * model(b[0]).square().mean(), model.parameters(), 2, verify=False
    )
    for scale in (1.0, 2.0):
        step((*_batch(8, 0), scale))
    assert passes == [8, 4, 4] * 2


def test_the_first_batch_is_checked(passes: list[int]) -> None:
    model = _model()
    step = MicroBatches(_mse(model), model.parameters(), 2)
    step(_batch(8, 0))
    checked = len(passes)
    assert checked > 2
    step(_batch(8, 1))
    assert len(passes) == checked


def test_mixing_is_refused_before_a_gradient_is_there() -> None:
    model = _model()

    def centred(b: Any) -> Tensor:
        h = model(b[0])
        return (h - h.mean(0)).square().mean()

    step = MicroBatches(centred, model.parameters(), 2)
    for _ in range(2):
        with pytest.raises(CannotSplitError, match="changes the gradients by"):
            step(_batch(8, 0))
    assert all(p.grad is None for p in model.parameters())


def test_dropout_is_asked_for() -> None:
    model = _model()
    objective = lambda b: F.dropout(model(b[0]), 0.1).square().mean()  # noqa: E731
    with pytest.raises(CannotSplitError, match="Allow it"):
        MicroBatches(objective, model.parameters(), 2)(_batch(8, 0))
    loss = MicroBatches(objective, model.parameters(), 2, allow_random=True)(_batch(8, 0))
    assert loss.isfinite()


def test_another_batch_dimension() -> None:
    """Time first."""
    torch.manual_seed(0)
    whole, split = nn.LSTM(4, 3).double(), nn.LSTM(4, 3).double()
    split.load_state_dict(whole.state_dict())
    x = torch.randn(5, 6, 4, dtype=torch.float64)
    whole(x)[0].square().mean().backward()
    MicroBatches(lambda b: split(b)[0].square().mean(), split.parameters(), 3, dim=1)(x)
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad)


@pytest.mark.parametrize("make", [_ce, _mse])
def test_with_the_optimizer_in_backward(
    make: Callable[[nn.Module], Callable[[Any], Tensor]],
) -> None:
    """Case T32: only the last micro-batch steps."""
    whole, split = _model(), _model()
    plain = torch.optim.AdamW(whole.parameters(), lr=0.01)
    ours = torch.optim.AdamW(split.parameters(), lr=0.01)
    reference = MicroBatches(make(whole), whole.parameters(), 3)
    with OptimizerInBackward(ours) as in_backward:
        step = MicroBatches(make(split), split.parameters(), 3, hold=in_backward.hold)
        for seed in range(3):
            reference(_batch(8, seed))
            step(_batch(8, seed))
            for optimizer in (plain, ours):
                optimizer.step()
                optimizer.zero_grad()
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", [_ce, _mse])
def test_with_saved_tensors_dropped(
    make: Callable[[nn.Module], Callable[[Any], Tensor]],
) -> None:
    """Under the hooks of a plan, which see no pass but the parts' own."""
    plain, dropped = _model(), _model()
    reference = MicroBatches(make(plain), plain.parameters(), 3)
    step = MicroBatches(make(dropped), dropped.parameters(), 3)
    for seed in range(2):
        expected = reference(_batch(8, seed))
        with SavedTensors(Tape(lambda place: True)):
            found = step(_batch(8, seed))
        assert torch.equal(found, expected)
    for a, b in zip(plain.parameters(), dropped.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_with_saved_tensors_dropped_and_terms_weighted_apart() -> None:
    plain, dropped = _model(), _model()

    def objective(model: nn.Module) -> Callable[[Any], Tensor]:
        return lambda b: _ce(model)(b) + 0.1 * _mse(model)(b)

    expected = MicroBatches(objective(plain), plain.parameters(), 3)(_batch(8, 0))
    with SavedTensors(Tape(lambda place: True)):
        found = MicroBatches(objective(dropped), dropped.parameters(), 3)(_batch(8, 0))
    assert torch.equal(found, expected)
    for a, b in zip(plain.parameters(), dropped.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_with_dropping_and_the_step_in_backward() -> None:
    """All of it together, against a plain step in micro-batches."""
    plain, ours = _model(), _model()
    reference = torch.optim.AdamW(plain.parameters(), lr=0.01)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.01)
    by_hand = MicroBatches(_ce(plain), plain.parameters(), 3)
    with HostState(optimizer) as host, OptimizerInBackward(optimizer, step=host.step) as stepping:
        step = MicroBatches(_ce(ours), ours.parameters(), 3, hold=stepping.hold)
        for seed in range(3):
            by_hand(_batch(8, seed))
            with SavedTensors(Tape(lambda place: place[0] % 2 == 0)):
                step(_batch(8, seed))
            for each in (reference, optimizer):
                each.step()
                each.zero_grad()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


def _masked(b: Any) -> Tensor:
    """Labels of -100, set in place on a copy."""
    labels = b[1].clone()
    labels[labels == 4] = -100
    return labels


_COUNT = torch.zeros((), dtype=torch.float64)
_FACTOR = [1.0]


def _by_a_count_outside(h: Tensor, b: Any) -> Tensor:
    """Divides by what something else counts, between the steps."""
    return F.cross_entropy(h, b[1], reduction="sum") / _COUNT


OF_VALUES: dict[str, tuple[Callable[[Tensor, Any], Tensor], int]] = {
    # The loss of outputs and batch, and in how many of four batches it is read anew.
    "labels": (lambda h, b: F.cross_entropy(h, b[1]), 1),
    "labels set in place": (lambda h, b: F.cross_entropy(h, _masked(b)), 1),
    "labels of a view": (lambda h, b: F.cross_entropy(h.view(-1, 10), b[1].view(-1)), 1),
    "smoothing": (lambda h, b: F.cross_entropy(h, b[1], label_smoothing=0.1), 1),
    "a mask": (
        lambda h, b: (h.square().mean(-1) * (b[1] >= 0)).sum() / (b[1] >= 0).sum().clamp(min=1),
        1,
    ),
    "a mean of floats": (lambda h, b: (h.sum(-1) * b[0][:, 0]).sum() / b[0].abs().sum(), 1),
    "a count outside": (_by_a_count_outside, 1),
    # Two of the batches have as many labels.
    "a number of the mask": (lambda h, b: h.square().sum() / (b[1] >= 0).sum().item(), 3),
    "a list": (lambda h, b: h.square().sum() / sum((b[1] >= 0).tolist()), 4),
    "numpy": (lambda h, b: h.square().sum() / float((b[1] >= 0).numpy().sum()), 4),
    "a branch": (
        lambda h, b: h.square().sum() / (3 if (b[1] >= 0).sum() > len(b[1]) / 2 else 5),
        2,
    ),
    "looked up": (
        lambda h, b: (
            (h.sum(-1) * h.new_ones(10)[b[1].clamp(min=0)]).sum()
            / torch.arange(10.0)[b[1].clamp(min=0)].sum()
        ),
        1,
    ),
    "chosen rows": (lambda h, b: F.cross_entropy(h[b[1] >= 0], b[1][b[1] >= 0]), 4),
    "chosen elements": (lambda h, b: h.masked_select(b[1][:, None] >= 0).square().mean(), 4),
    "chosen places": (lambda h, b: h[(b[1] >= 0).nonzero()[:, 0]].square().mean(), 4),
    "two losses": (lambda h, b: F.cross_entropy(h, b[1]) + h.square().mean(), 1),
    "two losses with a factor outside": (
        lambda h, b: F.cross_entropy(h, b[1]) + _FACTOR[0] * h.square().mean(),
        1,
    ),
}


@pytest.mark.parametrize("name", OF_VALUES)
def test_batches_of_the_same_shape_and_other_values(name: str, passes: list[int]) -> None:
    loss, reads = OF_VALUES[name]
    whole, split = _model(), _model()
    step = MicroBatches(lambda b: loss(split(b[0]), b), split.parameters(), 3, verify=False)
    for seed in range(4):
        _COUNT.fill_(seed + 1)
        _FACTOR[0] = 0.5 + seed
        batch = _batch(9, seed)
        expected = loss(whole(batch[0]), batch)
        expected.backward()  # type: ignore[no-untyped-call]
        found = step(tuple(t.clone() for t in batch))
        assert torch.allclose(found, expected.detach(), rtol=1e-10)
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, rtol=1e-10)
    assert passes.count(9) == reads
