"""Micro-batches: the gradients and the loss of the whole batch, or a refusal that says why."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from ebbtide import VirtualGpu
from ebbtide.train.micro_batches import run_parts
from ebbtide.train.micro_batches_plan import plan_parts, share_parts
from ebbtide.train.splitting import CannotSplitError

_DRAW = torch.Generator().manual_seed(5)
X = torch.randn(11, 16, generator=_DRAW)
LABELS = torch.randint(0, 10, (11,), generator=_DRAW)
LABELS[[0, 1, 2, 7]] = -100
TARGET = torch.rand(11, 10, generator=_DRAW)
WEIGHT = torch.rand(11, generator=_DRAW)
CLASSES = torch.rand(10, generator=_DRAW)
BATCH = {"x": X, "y": LABELS, "t": TARGET, "w": WEIGHT}
Loss = Callable[[nn.Module, Any], Tensor]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
        self.noise = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("classes", CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layers(x)
        return output


def _ce(model: nn.Module, b: Any, **settings: Any) -> Tensor:
    return F.cross_entropy(model(b["x"]), b["y"], **settings)


def _mse(model: nn.Module, b: Any, **settings: Any) -> Tensor:
    return F.mse_loss(model(b["x"]), b["t"], **settings)


def _l2(model: nn.Module) -> Tensor:
    return sum((p.square().sum() for p in model.parameters()), torch.zeros(()))


def _each(model: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(model(b["x"]), b["y"], reduction="none")


def _binary(model: nn.Module, b: Any, **settings: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(b["x"]), b["t"], **settings)


def _selected(model: nn.Module, b: Any) -> Tensor:
    """Only the rows with a label go into the loss."""
    counted = b["y"] >= 0
    return F.cross_entropy(model(b["x"])[counted], b["y"][counted])


def _mixed_precision(model: nn.Module, b: Any) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return _ce(model, b)


def _twice(model: nn.Module, b: Any) -> Tensor:
    """One reduction that is used on two ways."""
    loss = _ce(model, b)
    return loss + loss / (b["y"] >= 0).sum()


def _uncertain(model: Any, b: Any) -> Tensor:
    """A weight of the loss that is learnt."""
    return torch.exp(-model.noise) * _mse(model, b) + model.noise


SAME: dict[str, Loss] = {
    "mean squares": _mse,
    "sum of squares": lambda m, b: _mse(m, b, reduction="sum"),
    "sum over features": lambda m, b: _mse(m, b, reduction="none").sum(-1).mean(),
    "mean of absolutes": lambda m, b: F.l1_loss(m(b["x"]), b["t"]),
    "smooth absolutes": lambda m, b: F.smooth_l1_loss(m(b["x"]), b["t"]),
    "huber": lambda m, b: F.huber_loss(m(b["x"]), b["t"]),
    "valid labels": _ce,  # case T35
    "sum of valid labels": lambda m, b: _ce(m, b, reduction="sum"),
    "class weights": lambda m, b: _ce(m, b, weight=m.classes),
    "label smoothing": lambda m, b: _ce(m, b, label_smoothing=0.1),
    "smoothing and weights": lambda m, b: _ce(m, b, label_smoothing=0.1, weight=m.classes),
    "soft labels": lambda m, b: F.cross_entropy(m(b["x"]), b["t"]),
    "another ignored label": lambda m, b: F.cross_entropy(
        m(b["x"]), b["y"].clamp(min=0), ignore_index=0
    ),
    "negative log likelihood": lambda m, b: F.nll_loss(F.log_softmax(m(b["x"]), -1), b["y"]),
    "binary": _binary,
    "binary with weights": lambda m, b: _binary(m, b, weight=m.classes, pos_weight=m.classes),
    "probabilities": lambda m, b: F.binary_cross_entropy(m(b["x"]).sigmoid(), b["t"]),
    "divergence": lambda m, b: F.kl_div(m(b["x"]).log_softmax(-1), b["t"], reduction="batchmean"),
    "soft margin": lambda m, b: F.soft_margin_loss(m(b["x"]), b["t"].round() * 2 - 1),
    "multi margin": lambda m, b: F.multi_margin_loss(m(b["x"]), b["y"].clamp(min=0)),
    "poisson": lambda m, b: F.poisson_nll_loss(m(b["x"]), b["t"]),
    "triplet": lambda m, b: F.triplet_margin_loss(m(b["x"]), b["t"], b["t"].flip(-1)),
    "cosine": lambda m, b: 1 - F.cosine_similarity(m(b["x"]), b["t"]).mean(),
    "mask by hand": lambda m, b: (_each(m, b) * (b["y"] >= 0)).sum() / (b["y"] >= 0).sum(),
    "mask as a number": lambda m, b: _each(m, b).sum() / (b["y"] >= 0).sum().item(),
    "weight of samples": lambda m, b: (_each(m, b) * b["w"]).sum() / b["w"].sum(),
    "weight of samples, mean": lambda m, b: (_each(m, b) * b["w"]).mean(),
    "a number for the batch": lambda m, b: _ce(m, b, reduction="sum") / 7,
    "chosen rows": _selected,
    "chosen elements": lambda m, b: m(b["x"]).masked_select(b["t"] > 0.5).square().mean(),
    "two losses": lambda m, b: _ce(m, b) + 0.5 * _mse(m, b),
    "three losses": lambda m, b: _ce(m, b) - 0.5 * _mse(m, b) + 0.1 * _ce(m, b, reduction="sum"),
    "a penalty on weights": lambda m, b: _mse(m, b) + 0.01 * _l2(m),
    "a penalty beside labels": lambda m, b: _ce(m, b) + 0.01 * _l2(m),
    "a penalty beside a sum": lambda m, b: _mse(m, b, reduction="sum") + 0.01 * _l2(m),
    "used twice": _twice,
    "a learnt weight": _uncertain,
    "mixed precision": _mixed_precision,
    "scaled": lambda m, b: -3.0 * (_ce(m, b) / 2) + 5.0,
}

MIXED: dict[str, tuple[Loss, str]] = {
    "contrastive": (  # case T36
        lambda m, b: F.cross_entropy(m(b["x"]) @ m(b["x"]).T, torch.arange(len(b["x"]))),
        r"mixes samples: NllLossBackward0 reduces \(11, 11\) for the batch and \(3, 3\)",
    ),
    "all pairs": (
        lambda m, b: (m(b["x"]) @ m(b["x"]).T).flatten().square().mean(),
        "MeanBackward0 reduces 121 elements for the batch and 41 for its 3 parts",
    ),
    "batch norm": (  # case T36
        lambda m, b: F.mse_loss(F.batch_norm(m(b["x"]), None, None, training=True), b["t"]),
        r"1 batch norm\(s\) in training .* input \(11, 10\)\); in 3 parts",
    ),
    "root of the mean": (lambda m, b: _mse(m, b).sqrt(), "SqrtBackward0 is applied"),
    "balance of experts": (
        lambda m, b: _mse(m, b) + (m(b["x"]).softmax(-1).mean(0) ** 2).sum(),
        "PowBackward0 is applied",
    ),
    "balance by counts": (
        lambda m, b: (
            _mse(m, b)
            + (
                m(b["x"]).softmax(-1).mean(0) * F.one_hot(m(b["x"]).argmax(-1), 10).float().mean(0)
            ).sum()
        ),
        "multiplied or divided by depends on the parameters and the batch",
    ),
    "dice": (
        lambda m, b: (
            1 - (m(b["x"]).sigmoid() * b["t"]).sum() / (m(b["x"]).sigmoid() + b["t"]).sum()
        ),
        "DivBackward0 is applied",
    ),
    "product of losses": (lambda m, b: _mse(m, b) * _ce(m, b), "MulBackward0 is applied"),
    "variance": (lambda m, b: m(b["x"]).var(), "by VarBackward0, which is not a sum"),
    "largest": (lambda m, b: m(b["x"]).max(), "by MaxBackward1, which is not a sum"),
    "log of the sum": (
        lambda m, b: m(b["x"]).flatten().logsumexp(0),
        "by LogsumexpBackward0, which is not a sum",
    ),
    "dropout": (
        lambda m, b: F.mse_loss(F.dropout(m(b["x"]), 0.5), b["t"]),
        "draws random numbers .*; 3 parts would draw others",
    ),
    "noise": (
        lambda m, b: F.mse_loss(m(b["x"] + torch.randn_like(b["x"])), b["t"]),
        "draws random numbers .*randn_like 1 x",
    ),
    "a branch": (
        lambda m, b: _mse(m, b) * (1 if m(b["x"]).mean().item() > 0 else 2),
        "branches on values that depend on the parameters",
    ),
    "not one number": (
        lambda m, b: _mse(m, b, reduction="none").mean(-1),
        r"a tensor of shape \(11,\) for the batch",
    ),
    "no gradient": (lambda m, b: b["x"].mean(), "does not depend on anything that requires"),
    "no batch": (lambda m, b: _l2(m), "does not depend on the batch"),
    "learnt weight of labels": (
        lambda m, b: torch.exp(-m.noise) * _ce(m, b) + _mse(m, b),
        "A factor of the loss depends on the parameters",
    ),
    "weights of parameters": (
        lambda m, b: _mse(m, b) / m(b["x"]).detach().sum(),
        "multiplied or divided by depends on the parameters and the batch",
    ),
}


def _model(dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(0)
    return Model().to(dtype)


def _in(dtype: torch.dtype, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten().double()
            for p in model.parameters()
        ]
    )


def _whole(loss: Loss, model: nn.Module, batch: Any) -> Tensor:
    value = loss(model, batch)
    value.backward()  # type: ignore[no-untyped-call]
    return value.detach()


def _split(loss: Loss, model: nn.Module, batch: Any, parts: int) -> Tensor:
    def objective(given: Any) -> Tensor:
        return loss(model, given)

    planned = plan_parts(objective, model.parameters(), batch, parts)
    assert len(planned) == parts
    return run_parts(objective, planned)


@pytest.mark.parametrize("parts", [1, 2, 3, 11])
@pytest.mark.parametrize("name", SAME)
def test_gradients_and_loss_are_those_of_the_batch(name: str, parts: int) -> None:
    """In float64, where nothing but the order of sums is left."""
    loss = SAME[name]
    whole, split = _model(torch.float64), _model(torch.float64)
    batch = _in(torch.float64, BATCH)
    expected = _whole(loss, whole, batch)
    found = _split(loss, split, batch, parts)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    error = (_gradient(split) - _gradient(whole)).norm() / _gradient(whole).norm()
    assert error < 1e-12


@pytest.mark.parametrize("name", sorted(set(SAME) - {"mixed precision"}))
def test_the_error_is_at_most_twice_that_of_the_whole(name: str) -> None:
    loss = SAME[name]
    exact, whole, split = _model(torch.float64), _model(), _model()
    _whole(loss, exact, _in(torch.float64, BATCH))
    _whole(loss, whole, BATCH)
    _split(loss, split, BATCH, 3)
    error = (_gradient(whole) - _gradient(exact)).norm()
    assert (_gradient(split) - _gradient(exact)).norm() <= 2 * error


@pytest.mark.parametrize("name", MIXED)
def test_what_cannot_be_split_is_refused_before_anything_changes(name: str) -> None:
    loss, reason = MIXED[name]
    model = _model()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(7)
    random = torch.get_rng_state()
    with pytest.raises(CannotSplitError, match=reason):
        _split(loss, model, BATCH, 3)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("name", ["contrastive", "batch norm", "root of the mean", "dice"])
def test_what_is_refused_would_have_been_wrong(name: str) -> None:
    """The mean of the parts' losses, as people write it by hand."""
    loss = MIXED[name][0]
    whole, naive = _model(torch.float64), _model(torch.float64)
    batch = _in(torch.float64, BATCH)
    _whole(loss, whole, batch)
    for a, b in ((0, 4), (4, 8), (8, 11)):
        value = loss(naive, {k: v[a:b] for k, v in batch.items()}) * (b - a) / 11
        value.backward()  # type: ignore[no-untyped-call]
    assert (_gradient(naive) - _gradient(whole)).norm() > 0.01 * _gradient(whole).norm()


def test_ragged_labels_by_hand_are_wrong_and_ours_are_not() -> None:
    """Case T35: the mean of means, with parts of 1, 3 and 3 valid labels."""
    whole, naive = _model(), _model()
    _whole(_ce, whole, BATCH)
    for a, b in ((0, 4), (4, 8), (8, 11)):
        (_ce(naive, {k: v[a:b] for k, v in BATCH.items()}) / 3).backward()  # type: ignore[no-untyped-call]
    assert (_gradient(naive) - _gradient(whole)).norm() > 0.3 * _gradient(whole).norm()
    parts = plan_parts(lambda b: _ce(whole, b), whole.parameters(), BATCH, 3)
    assert [part.weight for part in parts] == pytest.approx([1 / 7, 3 / 7, 3 / 7])


def test_a_part_without_a_valid_label_counts_nothing() -> None:
    """Its own mean is 0/0."""
    batch = {**BATCH, "y": torch.where(torch.arange(11) < 4, -100, LABELS.clamp(min=0))}
    for name in ("valid labels", "mask by hand", "chosen rows", "two losses", "label smoothing"):
        whole, split = _model(torch.float64), _model(torch.float64)
        given = _in(torch.float64, batch)
        expected = _whole(SAME[name], whole, given)
        found = _split(SAME[name], split, given, 3)
        assert torch.allclose(found, expected), name
        assert torch.allclose(_gradient(split), _gradient(whole)), name


def test_gradients_add_to_what_is_there() -> None:
    whole, split = _model(torch.float64), _model(torch.float64)
    batch = _in(torch.float64, BATCH)
    for _ in range(2):
        _whole(_ce, whole, batch)
        _split(_ce, split, batch, 4)
    assert torch.allclose(_gradient(split), _gradient(whole))


def test_dropout_is_split_where_it_is_allowed() -> None:
    model = _model()
    objective = lambda b: MIXED["dropout"][0](model, b)  # noqa: E731
    parts = plan_parts(objective, model.parameters(), BATCH, 3, allow_random=True)
    assert [part.weight for part in parts] == pytest.approx([4 / 11, 4 / 11, 3 / 11])
    assert run_parts(objective, parts).isfinite()


def test_dropout_of_nothing_is_not_random() -> None:
    """Attention is marked as random by PyTorch, whether or not it drops."""

    def loss(model: nn.Module, b: Any) -> Tensor:
        h = model(b["x"])[:, None, :, None]
        return F.scaled_dot_product_attention(h, h, h).square().mean()

    whole, split = _model(torch.float64), _model(torch.float64)
    batch = _in(torch.float64, BATCH)
    _whole(loss, whole, batch)
    _split(loss, split, batch, 3)
    assert torch.allclose(_gradient(split), _gradient(whole))


def test_a_batch_of_one_is_refused() -> None:
    model = _model()
    one = {k: v[:1] for k, v in BATCH.items()}
    with pytest.raises(CannotSplitError, match="A batch of 1 cannot be split into 2 parts"):
        _split(_mse, model, one, 2)


def test_no_parts_are_refused() -> None:
    with pytest.raises(CannotSplitError, match="There are no parts"):
        run_parts(lambda b: b.sum(), [])


def test_all_but_the_last_part_are_held() -> None:
    model, seen = _model(), []

    @contextmanager
    def hold() -> Any:
        seen.append("held")
        yield
        seen.append("let go")

    def backward(loss: Tensor) -> None:
        seen.append("backward")
        loss.backward()  # type: ignore[no-untyped-call]

    objective = lambda b: _mse(model, b)  # noqa: E731
    parts = plan_parts(objective, model.parameters(), BATCH, 3)
    run_parts(objective, parts, backward=backward, hold=hold)
    assert seen == ["held", "backward", "let go"] * 2 + ["backward"]


@pytest.mark.parametrize("name", ["valid labels", "two losses"])
def test_a_scaled_backward_scales_all(name: str) -> None:
    """As GradScaler does."""
    whole, split = _model(torch.float64), _model(torch.float64)
    batch = _in(torch.float64, BATCH)
    _whole(SAME[name], whole, batch)
    objective = lambda b: SAME[name](split, b)  # noqa: E731
    parts = plan_parts(objective, split.parameters(), batch, 3)
    run_parts(objective, parts, backward=lambda loss: (loss * 1024).backward())  # type: ignore[no-untyped-call]
    assert torch.allclose(_gradient(split), 1024 * _gradient(whole))


def test_two_terms_that_cannot_be_weighted_apart_are_refused() -> None:
    """A vector of means over the batch, next to a mean over labels."""
    model = _model()
    loss = lambda m, b: _ce(m, b) + m(b["x"]).mean(0).sum()  # noqa: E731
    with pytest.raises(CannotSplitError, match="is not a reduction to one number"):
        _split(loss, model, BATCH, 3)
    split, whole = _model(torch.float64), _model(torch.float64)
    alone = lambda m, b: m(b["x"]).mean(0).sum()  # noqa: E731
    _whole(alone, whole, _in(torch.float64, BATCH))
    _split(alone, split, _in(torch.float64, BATCH), 3)
    assert torch.allclose(_gradient(split), _gradient(whole))


@given(
    ignored=st.lists(st.booleans(), min_size=11, max_size=11),
    parts=st.integers(1, 11),
    name=st.sampled_from(["valid labels", "class weights", "label smoothing", "two losses"]),
)
@settings(max_examples=25)
def test_any_labels_in_any_number_of_parts(ignored: list[bool], parts: int, name: str) -> None:
    if all(ignored):
        return
    labels = torch.where(torch.tensor(ignored), -100, LABELS.clamp(min=0))
    batch = _in(torch.float64, {**BATCH, "y": labels})
    whole, split = _model(torch.float64), _model(torch.float64)
    expected = _whole(SAME[name], whole, batch)
    found = _split(SAME[name], split, batch, parts)
    assert torch.allclose(found, expected)
    assert torch.allclose(_gradient(split), _gradient(whole), atol=1e-10)


def test_shares_are_those_of_samples() -> None:
    parts = share_parts(BATCH, 3)
    assert [part.weight for part in parts] == [part.share for part in parts]
    assert [part.share for part in parts] == pytest.approx([4 / 11, 4 / 11, 3 / 11])
    assert [part.batch["x"].shape[0] for part in parts] == [4, 4, 3]
    assert share_parts(BATCH, 1)[0].weight == 1


def test_on_a_virtual_gpu_the_peak_falls() -> None:
    """Labels have no values there, so parts count their share."""
    peaks = []
    for parts in (1, 4):
        with VirtualGpu("a100-80gb"):
            model = nn.Sequential(nn.Linear(64, 4096), nn.Tanh(), nn.Linear(4096, 10)).cuda()
            batch = (
                torch.ones(4096, 64, device="cuda"),
                torch.zeros(4096, dtype=torch.long, device="cuda"),
            )
            objective = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: B023, E731
            planned = plan_parts(objective, model.parameters(), batch, parts)
            assert planned[0].weight == 1 / parts
            run_parts(objective, planned)
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 0.5 * peaks[0]
