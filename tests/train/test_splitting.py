"""Splitting a batch: every sample once, in order, as views, whatever the batch is made of."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree as pytree

from ebbtide.errors import EbbtideError
from ebbtide.train.splitting import CannotSplitError, batch_size, part_sizes, split_batch, take

X = torch.arange(24.0).reshape(6, 4)
Y = torch.arange(6)
Pair = namedtuple("Pair", "x y")
BATCHES: dict[str, Any] = {
    "a tensor": X,
    "a tuple": (X, Y),
    "a list": [X, Y],
    "a dict": {"x": X, "y": Y},
    "an ordered dict": OrderedDict(x=X, y=Y),
    "a named tuple": Pair(X, Y),
    "nested": {"inputs": (X, [X * 2]), "labels": Y},
    "with numbers and words": {"x": X, "beta": 0.5, "name": "batch", "none": None},
}


def _joined(parts: list[Any]) -> Any:
    """The parts put together again."""
    return pytree.tree_map(
        lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], torch.Tensor) else leaves[0],
        *parts,
    )


@pytest.mark.parametrize("parts", [1, 2, 4, 6])
@pytest.mark.parametrize("name", BATCHES)
def test_parts_together_are_the_batch(name: str, parts: int) -> None:
    batch = BATCHES[name]
    made = split_batch(batch, parts)
    assert len(made) == parts
    assert all(type(each) is type(batch) for each in made)
    joined, spec = pytree.tree_flatten(_joined(made))
    leaves, expected = pytree.tree_flatten(batch)
    assert spec == expected
    for a, b in zip(leaves, joined, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_parts_are_views() -> None:
    first, second = split_batch(X, 2)
    assert first.untyped_storage().data_ptr() == X.untyped_storage().data_ptr()
    assert second.storage_offset() == 12


@given(size=st.integers(1, 200), parts=st.integers(1, 200))
@settings(max_examples=60)
def test_sizes_add_up_and_differ_by_one_at_most(size: int, parts: int) -> None:
    if parts > size:
        with pytest.raises(CannotSplitError, match=f"A batch of {size} .* into {parts}"):
            part_sizes(size, parts)
        return
    sizes = part_sizes(size, parts)
    assert sum(sizes) == size
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("parts", [0, -1])
def test_no_parts_are_refused(parts: int) -> None:
    with pytest.raises(CannotSplitError, match="Ask for 1 to 6 parts"):
        split_batch(X, parts)


def test_what_has_no_batch_dimension_goes_to_every_part() -> None:
    """Class weights, an attention bias for all samples, a single number."""
    batch = {"x": X, "y": Y, "weights": torch.ones(10), "bias": torch.ones(1, 4, 4)}
    batch["scale"] = torch.tensor(2.0)
    assert batch_size(batch) == 6
    for part in split_batch(batch, 3):
        assert part["x"].shape == (2, 4)
        assert part["y"].shape == (2,)
        assert all(part[name] is batch[name] for name in ("weights", "bias", "scale"))


def test_the_size_that_most_tensors_have_is_the_batch() -> None:
    assert batch_size({"weights": torch.ones(10), "x": X, "y": Y}) == 6
    assert batch_size((X, torch.ones(10))) == 6  # the first one, as both are as common


def test_the_size_can_be_said() -> None:
    batch = (torch.ones(10, 2), X)
    assert [part[1].shape[0] for part in split_batch(batch, 2, size=6)] == [3, 3]
    assert [part[0].shape[0] for part in split_batch(batch, 2, size=6)] == [10, 10]


def test_another_dimension() -> None:
    """Time first, as recurrences take it."""
    batch = (torch.ones(7, 6, 3), torch.ones(7, 6))
    parts = split_batch(batch, 4, dim=1)
    assert [part[0].shape for part in parts] == [(7, 2, 3), (7, 2, 3), (7, 1, 3), (7, 1, 3)]
    assert all(part[0].shape[:2] == part[1].shape for part in parts)


def test_a_user_dict_stays_one() -> None:
    """As the BatchEncoding of Transformers, which pytree does not look into."""

    class Encoding(UserDict[str, Any]):
        pass

    batch = Encoding(ids=X, mask=X > 3, text=["a"])
    assert batch_size(batch) == 6
    parts = split_batch(batch, 2)
    assert all(type(part) is Encoding for part in parts)
    assert [part["ids"].shape for part in parts] == [(3, 4), (3, 4)]
    assert batch["ids"] is X
    assert parts[1]["text"] == ["a"]


def test_some_samples() -> None:
    x, y = take((X, Y), 2, 5)
    assert torch.equal(x, X[2:5])
    assert y.tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({}, "holds 0 tensors"),
        (["a", 3], "holds 0 tensors"),
        (torch.tensor(3.0), "holds 1 tensors and none with a dimension 0"),
        (object(), "holds 0 tensors"),
        ({"x": pack_sequence([X[:3], X[:2]])}, "PackedSequence"),
        (torch.eye(4).to_sparse(), r"sparse tensor of shape \(4, 4\)"),
        (
            (X, torch.nested.nested_tensor([X[0], X[1, :2]], layout=torch.jagged)),
            "nested tensor",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(batch: Any, reason: str) -> None:
    with pytest.raises(CannotSplitError, match=reason) as caught:
        split_batch(batch, 2)
    assert isinstance(caught.value, EbbtideError)
    assert "out of the plan" in str(caught.value)


@given(size=st.integers(1, 12), parts=st.integers(1, 12), dim=st.integers(0, 2), data=st.data())
@settings(max_examples=40)
def test_any_tensor_is_put_together_again(
    size: int, parts: int, dim: int, data: st.DataObject
) -> None:
    if parts > size:
        return
    shape = data.draw(st.lists(st.integers(13, 15), min_size=3, max_size=3))
    shape[dim] = size
    whole = torch.randn(shape)
    assert torch.equal(torch.cat(split_batch(whole, parts, dim), dim), whole)
