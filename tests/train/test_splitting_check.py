"""The check by figures: what the graph does not show is found, and nothing is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebbtide.train.splitting import CannotSplitError
from ebbtide.train.splitting_check import SplitCheck, verify_split

_DRAW = torch.Generator().manual_seed(2)
X = torch.randn(9, 16, generator=_DRAW)
LABELS = torch.randint(0, 10, (9,), generator=_DRAW)
LABELS[1] = -100
BATCH = (X, LABELS)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))


def _verify(
    loss: Callable[[nn.Module, Any], Tensor], model: nn.Module | None = None, **settings: Any
) -> SplitCheck:
    model = model or _model()
    return verify_split(lambda b: loss(model, b), model.parameters(), BATCH, 3, **settings)


def _ce(model: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(model(b[0]), b[1])


def _centred(model: nn.Module, b: Any) -> Tensor:
    """A batch norm written by hand, which no graph shows."""
    h = model(b[0])
    h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
    return F.cross_entropy(h, b[1])


def _negatives(model: nn.Module, b: Any) -> Tensor:
    """Each sample against the next one: as many rows, but of other samples."""
    h = F.normalize(model(b[0]), dim=-1)
    return (h * h.roll(1, 0)).sum(-1).mean()


def _hardest(model: nn.Module, b: Any) -> Tensor:
    """Against the nearest other sample."""
    h = F.normalize(model(b[0]), dim=-1)
    near = (h @ h.T - 2 * torch.eye(len(h), dtype=h.dtype)).max(-1).values
    return near.mean()


def _attends(model: nn.Module, b: Any) -> Tensor:
    """Attention over samples, as of layers told batch_first the wrong way."""
    h = model(b[0])
    return F.scaled_dot_product_attention(h, h, h).square().mean()


def test_a_mean_is_the_same() -> None:
    check = _verify(_ce)
    assert check.ok
    assert check.samples == 3
    assert check.parts == 2
    assert check.change < 1e-14
    assert check.loss_change < 1e-14
    assert check.eager_error is not None
    assert check.split_error is not None
    assert 1e-9 < check.eager_error < 1e-5
    assert 1e-9 < check.split_error < 1e-5
    check.require()


@pytest.mark.parametrize("loss", [_centred, _negatives, _hardest, _attends])
def test_mixing_is_found_by_figures(loss: Callable[[nn.Module, Any], Tensor]) -> None:
    """Case T36, where the reduction is a plain mean."""
    check = _verify(loss)
    assert not check.ok
    assert check.change > 0.01
    with pytest.raises(CannotSplitError, match=r"changes the gradients by .* of their norm"):
        check.require()


def test_the_message_has_the_figures() -> None:
    check = SplitCheck(
        ok=False,
        samples=4,
        parts=2,
        change=0.81,
        loss_change=0.3,
        eager_error=None,
        split_error=None,
    )
    with pytest.raises(CannotSplitError) as caught:
        check.require()
    assert "by 0.81 of their norm (81%), and the loss by 30%, on 4 samples" in str(caught.value)


def test_what_the_graph_shows_is_refused_before() -> None:
    with pytest.raises(CannotSplitError, match="SqrtBackward0"):
        _verify(lambda m, b: _ce(m, b).sqrt())


def test_nothing_is_changed() -> None:
    model = _model()
    _ce(model, BATCH).backward()  # type: ignore[no-untyped-call]
    fired = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: fired.append(p))
    gradients = [p.grad for p in model.parameters()]
    values = [None if g is None else g.clone() for g in gradients]
    addresses = [p.data_ptr() for p in model.parameters()]
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    _verify(_ce, model)
    _verify(_centred, model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert all(p.dtype == torch.float32 for p in model.parameters())
    for p, gradient, value in zip(model.parameters(), gradients, values, strict=True):
        assert p.grad is gradient
        assert value is not None
        assert gradient is not None
        assert torch.equal(value, gradient)
    assert torch.equal(torch.get_rng_state(), random)
    assert not fired


def test_nothing_is_changed_by_an_error_in_float64() -> None:
    model = _model()

    def loss(m: nn.Module, b: Any) -> Tensor:
        if b[0].dtype == torch.float64:
            raise ValueError("mine")
        return _ce(m, b)

    with pytest.raises(ValueError, match="mine"):
        _verify(loss, model)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_batch_is_not_written_to() -> None:
    batch = (X.clone(), LABELS.clone())
    model = _model()

    def objective(b: Any) -> Tensor:
        b[1][b[1] == 3] = -100
        return _ce(model, b)

    assert verify_split(objective, model.parameters(), batch, 3).ok
    assert torch.equal(batch[0], X)
    assert torch.equal(batch[1], LABELS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = _model().to(dtype)
    batch = (X.to(dtype), LABELS)
    check = verify_split(lambda b: _ce(model, b), model.parameters(), batch, 3)
    assert check.ok
    assert check.change < 1e-6
    assert check.eager_error is not None
    assert all(p.dtype == dtype for p in model.parameters())


def test_mixed_precision_is_compared_in_float64() -> None:
    """Autocast leaves float64 alone."""

    def loss(m: nn.Module, b: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return _ce(m, b)

    check = _verify(loss)
    assert check.ok
    assert check.change < 1e-14
    assert check.eager_error is not None
    assert check.eager_error > 1e-4


def test_where_float64_is_not_possible_the_dtype_decides() -> None:
    weight = torch.rand(10)  # cross-entropy does not mix dtypes
    check = _verify(lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weight))
    assert check.ok
    assert check.eager_error is None
    assert check.change < 1e-5
    wrong = _verify(lambda m, b: F.cross_entropy(m(b[0]) - m(b[0]).mean(0), b[1], weight=weight))
    assert not wrong.ok
    assert wrong.eager_error is None


def test_dropout_does_not_hide_mixing() -> None:
    def dropped(m: nn.Module, b: Any) -> Tensor:
        return _ce(m, (F.dropout(b[0], 0.5), b[1]))

    def mixed(m: nn.Module, b: Any) -> Tensor:
        return _centred(m, (F.dropout(b[0], 0.5), b[1]))

    with pytest.raises(CannotSplitError, match="draws random numbers"):
        _verify(dropped)
    assert _verify(dropped, allow_random=True).ok
    assert not _verify(mixed, allow_random=True).ok


def test_dropout_in_attention_does_not_hide_it_either() -> None:
    def within(m: nn.Module, b: Any) -> Tensor:
        h = m(b[0])[:, None, :, None]
        return F.scaled_dot_product_attention(h, h, h, dropout_p=0.5).square().mean()

    assert _verify(within, allow_random=True).ok


def test_a_shuffle_of_samples_is_found() -> None:
    """Mixup draws an order and adds another sample to each."""

    def mixed(m: nn.Module, b: Any) -> Tensor:
        other = b[0][torch.randperm(len(b[0]))]
        return m(0.5 * b[0] + 0.5 * other).square().mean()

    torch.manual_seed(1)
    assert not _verify(mixed, allow_random=True).ok


def test_samples_with_a_loss_are_looked_for() -> None:
    """The first ones have no label."""
    labels = torch.where(torch.arange(9) < 5, -100, LABELS)
    model = _model()
    check = verify_split(lambda b: _ce(model, b), model.parameters(), (X, labels), 3)
    assert check.ok


def test_a_loss_without_labels_cannot_be_checked() -> None:
    labels = torch.full((9,), -100)
    model = _model()
    with pytest.raises(CannotSplitError, match="is not finite, or no gradient is, on 3 samples"):
        verify_split(lambda b: _ce(model, b), model.parameters(), (X, labels), 3)


def test_a_batch_of_one_is_refused() -> None:
    model = _model()
    with pytest.raises(CannotSplitError, match="A batch of 1 cannot be split"):
        verify_split(lambda b: _ce(model, b), model.parameters(), (X[:1], LABELS[:1]), 1)


def test_few_samples_are_taken() -> None:
    sizes = []
    model = _model()

    def objective(b: Any) -> Tensor:
        sizes.append(len(b[0]))
        return _ce(model, b)

    big = (X.repeat(20, 1), LABELS.repeat(20))
    assert verify_split(objective, model.parameters(), big, 2).samples == 4
    assert max(sizes) == 4


def test_parameters_that_are_frozen_or_unused() -> None:
    model = nn.ModuleDict({"used": _model(), "unused": nn.Linear(2, 2)})
    model["used"][0].requires_grad_(False)  # type: ignore[index]
    check = verify_split(lambda b: _ce(model["used"], b), model.parameters(), BATCH, 3)
    assert check.ok


def test_sparse_gradients() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
    check = verify_split(
        lambda b: model(b).square().mean(), model.parameters(), LABELS.clamp(min=0), 3
    )
    assert check.ok
