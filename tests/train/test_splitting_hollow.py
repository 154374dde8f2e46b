"""A pass without arithmetic: shapes of what parameters go into, values of what they do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide.train.splitting import CannotSplitError
from ebbtide.train.splitting_hollow import Hollow, hollow_loss

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([3, -100, 1, 0, -100, 2, 2, 9])


class _Sizes(TorchDispatchMode):
    """The largest number of elements that any operation gave."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def _seen(objective: Callable[[Any], Tensor], model: nn.Module, batch: Any = X) -> Hollow:
    return hollow_loss(objective, model.parameters(), batch)[1]


def test_what_parameters_go_into_has_no_values_and_the_rest_has() -> None:
    model = nn.Linear(16, 10)
    found: dict[str, Tensor] = {}

    def objective(batch: Any) -> Tensor:
        found["output"] = model(batch[0])
        found["mask"] = batch[1] >= 0
        found["count"] = found["mask"].sum()
        return F.cross_entropy(found["output"], batch[1])

    loss, _ = hollow_loss(objective, model.parameters(), (X, LABELS))
    assert isinstance(found["output"], FakeTensor)
    assert found["output"].shape == (8, 10)
    assert not isinstance(found["mask"], FakeTensor)
    assert found["count"].item() == 6
    assert isinstance(loss, FakeTensor)
    assert loss.grad_fn is not None
    assert loss.grad_fn._saved_total_weight.item() == 6


def test_class_weights_count() -> None:
    model, weight = nn.Linear(16, 10), torch.arange(10.0)
    loss, _ = hollow_loss(
        lambda b: F.cross_entropy(model(b[0]), b[1], weight=weight),
        model.parameters(),
        (X, LABELS),
    )
    assert loss.grad_fn is not None
    assert loss.grad_fn._saved_total_weight.item() == 3 + 1 + 0 + 2 + 2 + 9


def test_images_with_labels_for_each_pixel() -> None:
    model = nn.Conv2d(3, 4, 1)
    labels = torch.full((2, 5, 5), -100)
    labels[0, :2] = 1
    loss, _ = hollow_loss(
        lambda b: F.cross_entropy(model(b[0]), b[1]),
        model.parameters(),
        (torch.ones(2, 3, 5, 5), labels),
    )
    assert loss.grad_fn is not None
    assert loss.grad_fn.name() == "NllLoss2DBackward0"
    assert loss.grad_fn._saved_total_weight.item() == 10


def test_learnt_class_weights_are_unknown() -> None:
    model = nn.Linear(16, 10)
    loss, _ = hollow_loss(
        lambda b: F.cross_entropy(model(b[0]), b[1], weight=model.bias.detach()),
        model.parameters(),
        (X, LABELS),
    )
    assert loss.grad_fn is not None
    assert isinstance(loss.grad_fn._saved_total_weight, FakeTensor)


def test_frozen_parameters_are_not_computed_with_either() -> None:
    frozen = nn.Linear(16, 10)
    frozen.requires_grad_(False)
    head = nn.Linear(10, 1)
    found = []

    def objective(x: Any) -> Tensor:
        found.append(frozen(x))
        loss: Tensor = head(found[0]).mean()
        return loss

    hollow_loss(objective, [*frozen.parameters(), *head.parameters()], X)
    assert isinstance(found[0], FakeTensor)


def test_nothing_large_is_computed() -> None:
    """A mask of all pairs of positions takes more than the batch."""
    model = nn.Linear(1, 4)
    tokens = torch.ones(2, 1200, 1)
    found = []

    def objective(x: Any) -> Tensor:
        distance = torch.arange(1200)[:, None] - torch.arange(1200)
        found.append(distance)
        h = model(x)
        loss: Tensor = (h @ h.mT).masked_fill(distance < 0, 0).square().sum()
        return loss

    loss, _ = hollow_loss(objective, model.parameters(), tokens)
    assert isinstance(found[0], FakeTensor)
    assert loss.shape == ()


@pytest.mark.parametrize(
    ("forward", "random"),
    [
        (lambda model, x: F.dropout(model(x), 0.5), True),
        (lambda model, x: F.dropout(model(x), 0.5, training=False), False),
        (lambda model, x: model(x + torch.rand_like(x)), True),
        (lambda model, x: model(x) * torch.bernoulli(torch.full((8, 10), 0.5)), True),
        (lambda model, x: model(x[torch.randperm(8)]), True),
        (lambda model, x: F.rrelu(model(x), training=True), True),
        (lambda model, x: F.gumbel_softmax(model(x)), True),
        (lambda model, x: model(x), False),
    ],
)
def test_random_draws_are_seen(
    forward: Callable[[nn.Module, Tensor], Tensor], random: bool
) -> None:
    model = nn.Linear(16, 10)
    seen = _seen(lambda x: forward(model, x).mean(), model)
    assert bool(seen.random) is random


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_draws_outside_torch_are_seen(draw: Callable[[], float]) -> None:
    model = nn.Linear(16, 10)
    seen = _seen(lambda x: model(x).mean() * draw(), model)
    assert sum(seen.random.values()) == 1


def _attention(x: Tensor, dropout: float) -> Tensor:
    h = x[:, None, :, None]
    return F.scaled_dot_product_attention(h, h, h, dropout_p=dropout).mean()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_is_random_where_it_drops(dropout: float) -> None:
    model = nn.Linear(16, 10)
    assert bool(_seen(lambda x: _attention(model(x), dropout), model).random) is (dropout > 0)


@pytest.mark.parametrize(
    ("layer", "norms", "writes"),
    [
        (nn.BatchNorm1d(10), 1, True),
        (nn.BatchNorm1d(10, track_running_stats=False), 1, False),
        (nn.BatchNorm1d(10).eval(), 0, False),
        (nn.LayerNorm(10), 0, False),
        (nn.GroupNorm(2, 10), 0, False),
        (parametrizations.spectral_norm(nn.Linear(10, 10)), 0, True),
        (parametrizations.spectral_norm(nn.Linear(10, 10)).eval(), 0, False),
        (parametrizations.weight_norm(nn.Linear(10, 10)), 0, False),
    ],
)
def test_norms_and_writes_are_seen(layer: nn.Module, norms: int, writes: bool) -> None:
    model = nn.Sequential(nn.Linear(16, 10), layer)
    before = [buffer.clone() for buffer in model.buffers()]
    seen = _seen(lambda x: model(x).mean(), model)
    assert len(seen.norms) == norms
    assert bool(seen.writes) is writes
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


def test_an_instance_norm_is_of_each_sample() -> None:
    """PyTorch computes it as a batch norm of one."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4))
    assert not _seen(lambda x: model(x).square().mean(), model, torch.ones(5, 3, 6, 6)).norms


def test_a_counter_is_seen_and_put_back() -> None:
    model = nn.Linear(16, 10)
    calls = torch.zeros(())

    def objective(x: Any) -> Tensor:
        calls.add_(1)
        loss: Tensor = model(x).mean()
        return loss

    assert _seen(objective, model).writes == [()]
    assert calls == 0


def test_the_batch_may_be_written_to_and_is_put_back() -> None:
    """Labels that are masked in place are none of the model."""
    model = nn.Linear(16, 10)
    batch = (X.clone(), LABELS.clone())

    def objective(b: Any) -> Tensor:
        b[1][b[1] == 2] = -100
        b[0].mul_(2)
        return F.cross_entropy(model(b[0]), b[1])

    assert not _seen(objective, model, batch).writes
    assert torch.equal(batch[0], X)
    assert torch.equal(batch[1], LABELS)


def test_what_the_pass_made_may_be_written_to() -> None:
    model = nn.Linear(16, 10)

    def objective(x: Any) -> Tensor:
        out = torch.zeros(8, 20)
        out[:, :10] = model(x)
        out[:, 10:] = 1
        assert out.shape == (8, 20)
        return out.square().sum()

    loss, seen = hollow_loss(objective, model.parameters(), X)
    assert not seen.writes
    assert loss.requires_grad


def test_known_masks_choose_a_known_number() -> None:
    model = nn.Linear(16, 10)
    shapes = []

    def objective(b: Any) -> Tensor:
        output = model(b[0])
        counted = b[1] >= 0
        shapes.append(output[counted].shape)
        shapes.append(output.masked_select(counted[:, None]).shape)
        output = output.clone()
        output[counted] = 0
        shapes.append(output.shape)
        return output.sum()

    hollow_loss(objective, model.parameters(), (X, LABELS))
    assert shapes == [(6, 10), (60,), (8, 10)]


@pytest.mark.parametrize(
    "objective",
    [
        lambda model, x: model(x).mean() if model(x).sum() > 0 else model(x).sum(),
        lambda model, x: model(x)[model(x) > 0].sum(),
        lambda model, x: model(x).nonzero().float().mean() + model(x).mean(),
    ],
)
def test_looking_at_values_is_refused(objective: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = nn.Linear(16, 10)
    with pytest.raises(CannotSplitError, match="values that depend on the parameters"):
        hollow_loss(lambda x: objective(model, x), model.parameters(), X)


def test_an_operation_without_a_rule_for_its_shape_is_refused() -> None:
    """torch's rule for grouped products wants bfloat16, which its kernel on CPU does not."""
    weight = nn.Parameter(torch.ones(2, 16, 8))
    ends = torch.tensor([4, 8], dtype=torch.int32)
    with pytest.raises(CannotSplitError, match="_grouped_mm.default gives no shape without"):
        hollow_loss(lambda x: torch._grouped_mm(x, weight, ends).mean(), [weight], X)


def test_an_error_of_the_objective_comes_through_and_leaves_nothing() -> None:
    model, calls = nn.Linear(16, 10), torch.zeros(3)

    def objective(x: Any) -> Tensor:
        calls.fill_(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        hollow_loss(objective, model.parameters(), X)
    assert calls.tolist() == [0, 0, 0]
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_generators_are_as_before() -> None:
    model = nn.Linear(16, 10)

    def objective(x: Any) -> Tensor:
        random.random()
        np.random.rand()
        loss: Tensor = model(x + torch.randn_like(x)).mean()
        return loss

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    hollow_loss(objective, model.parameters(), X)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_hooks_and_modes_around_it_see_nothing() -> None:
    model = nn.Linear(16, 10)
    packed = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    sizes = _Sizes()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), sizes:
        hollow_loss(lambda x: model(x).square().mean(), model.parameters(), X)
    assert packed == []
    assert sizes.largest == 0


def test_no_grad_around_it_does_not_matter() -> None:
    model = nn.Linear(16, 10)
    with torch.no_grad():
        loss, _ = hollow_loss(lambda x: model(x).mean(), model.parameters(), X)
    assert loss.grad_fn is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True),
        lambda: nn.LSTM(16, 8, 2),
        lambda: nn.Sequential(nn.Linear(16, 4), nn.Softmax(-1), nn.Linear(4, 4)),
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
    ],
)
def test_layers_of_torch_have_their_shapes(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(3, 5, 16)
    attention = isinstance(model, nn.MultiheadAttention)

    def forward(given: Tensor) -> Tensor:
        output = model(given, given, given) if attention else model(given)
        return output[0] if isinstance(output, tuple) else output

    shapes = []

    def objective(given: Tensor) -> Tensor:
        output = forward(given)
        shapes.append(output.shape)
        return output.mean()

    hollow_loss(objective, model.parameters(), x)
    assert shapes == [forward(x).shape]
