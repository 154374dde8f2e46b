"""What a loss reduces: the terms read from graphs, with what each part of them counts."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebbtide.train.splitting import CannotSplitError, split_batch
from ebbtide.train.splitting_terms import Term, node_at, terms

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, -100, 1, 2, -100, -100])
LAYER = nn.Linear(4, 3)
BATCH = {"x": X, "y": LABELS}


def _terms(objective: Callable[[dict[str, Tensor]], Tensor], parts: int = 2) -> list[Term]:
    """Graphs of real tensors do as well."""
    losses = [objective(each) for each in (BATCH, *split_batch(BATCH, parts))]
    return terms(losses)


def _inside(term: Term) -> list[float]:
    return [factor.number({}) for factor in term.inside]


def test_a_mean_is_over_samples() -> None:
    (term,) = _terms(lambda b: LAYER(b["x"]).mean(), 4)
    assert term.kind == "MeanBackward0"
    assert term.path == ()
    assert term.over_batch
    assert term.scalar
    assert term.elements == (18, 6, 6, 3, 3)
    assert _inside(term) == [18, 6, 6, 3, 3]
    assert term.outside() == [1] * 5
    assert term.weights() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])


def test_a_sum_counts_all() -> None:
    (term,) = _terms(lambda b: LAYER(b["x"]).sum())
    assert _inside(term) == [1, 1, 1]
    assert term.weights() == [1, 1]


def test_labels_count_where_they_are_valid() -> None:
    (term,) = _terms(lambda b: F.cross_entropy(LAYER(b["x"]), b["y"]))
    assert term.kind == "NllLossBackward0"
    assert _inside(term) == [3, 2, 1]
    assert term.weights() == pytest.approx([2 / 3, 1 / 3])


def test_a_part_without_valid_labels_counts_nothing() -> None:
    (term,) = _terms(lambda b: F.cross_entropy(LAYER(b["x"]), b["y"]), 3)
    assert _inside(term) == [3, 1, 2, 0]
    assert term.weights() == pytest.approx([1 / 3, 2 / 3, 0])


def test_factors_above_are_multiplied() -> None:
    (term,) = _terms(lambda b: -3 * (LAYER(b["x"]).sum() / len(b["x"])) + 1)
    assert term.outside() == pytest.approx([-3 / 6, -3 / 3, -3 / 3])
    assert term.weights() == pytest.approx([0.5, 0.5])


def test_a_division_by_a_tensor() -> None:
    def objective(b: dict[str, Tensor]) -> Tensor:
        return (LAYER(b["x"]).sum(-1) * (b["y"] >= 0)).sum() / (b["y"] >= 0).sum()

    (term,) = _terms(objective, 3)
    assert term.kind == "SumBackward0"
    assert term.outside() == pytest.approx([1 / 3, 1, 1 / 2, math.inf])
    assert term.weights() == pytest.approx([1 / 3, 2 / 3, 0])


def test_terms_come_in_the_order_of_the_sum() -> None:
    found = _terms(
        lambda b: (
            F.cross_entropy(LAYER(b["x"]), b["y"])
            + 2 * LAYER(b["x"]).square().mean()
            - 0.5 * LAYER.weight.square().sum()
        )
    )
    assert [term.kind for term in found[:2]] == ["NllLossBackward0", "MeanBackward0"]
    assert [term.over_batch for term in found] == [True, True, False]
    assert [term.outside()[0] for term in found[:2]] == [1, 2]
    assert found[1].weights() == pytest.approx([0.5, 0.5])
    assert all(not term.coupled for term in found)


def test_paths_lead_to_nodes() -> None:
    def objective(b: dict[str, Tensor]) -> Tensor:
        return 2 * LAYER(b["x"]).mean() + F.cross_entropy(LAYER(b["x"]), b["y"])

    loss = objective(BATCH)
    for term in _terms(objective):
        assert node_at(loss, term.path).name() == term.kind
    assert node_at(loss, ()) is loss.grad_fn


def test_one_reduction_on_two_ways_is_one_term() -> None:
    def objective(b: dict[str, Tensor]) -> Tensor:
        mean = LAYER(b["x"]).mean()
        return mean + mean / len(b["x"])

    (term,) = _terms(objective)
    assert term.outside() == pytest.approx([1 + 1 / 6, 1 + 1 / 3, 1 + 1 / 3])
    assert term.weights() == pytest.approx([7 / 6 / (4 / 3) / 2] * 2)


def test_a_learnt_factor_is_coupled() -> None:
    scale = nn.Parameter(torch.tensor(2.0))
    (term,) = _terms(lambda b: scale.exp() * LAYER(b["x"]).mean())
    assert term.coupled
    assert term.weights() == pytest.approx([0.5, 0.5])


def test_a_vector_of_means() -> None:
    (term,) = _terms(lambda b: (LAYER(b["x"]).mean(0) * torch.arange(3.0)).sum())
    assert term.kind == "MeanBackward1"
    assert not term.scalar
    assert _inside(term) == [6, 3, 3]
    assert term.weights() == pytest.approx([0.5, 0.5])


def test_a_vector_of_factors_that_changes_is_unknown() -> None:
    (term,) = _terms(lambda b: (LAYER(b["x"]).mean(0) * b["x"].mean(0)[:3]).sum())
    assert all(map(math.isnan, term.weights()))


@pytest.mark.parametrize(
    "reduce",
    [
        lambda h: torch.stack([h.sum(), h.mean()]).sum(),
        lambda h: torch.cat([h.mean()[None], h.sum()[None]]).mean(),
        lambda h: (1 - h.mean()).to(torch.float64).reshape(1).squeeze(),
        lambda h: h.sum(0)[1:].sum(),
        lambda h: h.sum(0).view(3, 1).expand(3, 2).mean(),
        lambda h: torch.dot(h.sum(-1), torch.ones(len(h))),
    ],
)
def test_linear_ways_up_are_followed(reduce: Callable[[Tensor], Tensor]) -> None:
    for term in _terms(lambda b: reduce(LAYER(b["x"]))):
        assert term.over_batch
        expected = [1.0, 1.0] if term.kind[:3] in ("Sum", "Dot") else [0.5, 0.5]
        assert term.weights() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reduce", "kind"),
    [
        (lambda h: h.mean().exp(), "ExpBackward0"),
        (lambda h: h.mean() ** 2, "PowBackward0"),
        (lambda h: 1 / h.mean(), "ReciprocalBackward0"),
        (lambda h: h.mean() * h.sum(), "MulBackward0"),
        (lambda h: h.mean() / h.sum(), "DivBackward0"),
        (lambda h: torch.maximum(h.mean(), h.sum()), "MaximumBackward0"),
        (lambda h: h.mean(0).softmax(0)[0], "SoftmaxBackward0"),
    ],
)
def test_what_is_not_linear_is_refused(reduce: Callable[[Tensor], Tensor], kind: str) -> None:
    with pytest.raises(CannotSplitError, match=f"mixes samples: {kind} is applied"):
        _terms(lambda b: reduce(LAYER(b["x"])))


@pytest.mark.parametrize(
    ("reduce", "kind"),
    [
        (lambda h: h.std(), "StdBackward0"),
        (lambda h: h.norm(), "LinalgVectorNormBackward0"),
        (lambda h: h.amax(), "AmaxBackward0"),
        (lambda h: h.median(), "MedianBackward0"),
        (lambda h: h.prod(), "ProdBackward0"),
    ],
)
def test_what_is_not_a_sum_is_refused(reduce: Callable[[Tensor], Tensor], kind: str) -> None:
    with pytest.raises(CannotSplitError, match=f"reduces the batch by {kind}"):
        _terms(lambda b: reduce(LAYER(b["x"])))


def test_all_pairs_of_samples_are_refused() -> None:
    with pytest.raises(CannotSplitError, match=r"reduces \(6, 6\) .* \(3, 3\) .* in 2 dimensions"):
        _terms(lambda b: (LAYER(b["x"]) @ LAYER(b["x"]).T).mean())


def test_another_computation_for_a_part_is_refused() -> None:
    def objective(b: dict[str, Tensor]) -> Tensor:
        h = LAYER(b["x"])
        return h.mean() + h.sum() if len(h) > 3 else h.mean() - h.sum()

    with pytest.raises(CannotSplitError, match="something else for a part .*AddBackward0"):
        _terms(objective)


def test_a_loss_for_each_sample_is_refused() -> None:
    with pytest.raises(CannotSplitError, match=r"shape \(6, 3\) for the batch, not one number"):
        _terms(lambda b: LAYER(b["x"]))


def test_a_loss_without_gradient_is_refused() -> None:
    with pytest.raises(CannotSplitError, match="Train at least one parameter"):
        _terms(lambda b: LAYER(b["x"]).mean().detach())


def test_a_custom_function_is_refused() -> None:
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.mean()

        @staticmethod
        def backward(ctx: object, g: Tensor) -> Tensor:
            raise NotImplementedError

    with pytest.raises(CannotSplitError, match="reduces the batch by LossBackward"):
        _terms(lambda b: Loss.apply(LAYER(b["x"])))
