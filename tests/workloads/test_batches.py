"""Where a batch size is found, and how data loaders are given another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from ebbtide.workloads.batches import PLACEHOLDER, LoaderBatches, find_batch, other_sizes

DATA = TensorDataset(torch.arange(40))


@pytest.mark.parametrize(
    "option",
    [
        "--batch",
        "--batch-size",
        "--batch_size",
        "--bs",
        "-b",
        "-bs",
        "--train_batch_size",
        "--train-batch-size",
        "--per_device_train_batch_size",
        "--micro-batch-size",
        "--batch_size_per_gpu",
        "--data.batch_size",
        "--batchsize",
    ],
)
def test_options_of_common_training_scripts(option: str) -> None:
    assert find_batch(["--lr", "1", option, "8", "x"]) == (
        ("--lr", "1", option, PLACEHOLDER, "x"),
        8,
    )
    assert find_batch([f"{option}=32"]) == ((f"{option}={PLACEHOLDER}",), 32)


@pytest.mark.parametrize("argument", ["batch_size=16", "train.batch_size=16", "data.batch=16"])
def test_overrides_without_dashes(argument: str) -> None:
    name = argument.partition("=")[0]
    assert find_batch(["model=gpt", argument]) == (("model=gpt", f"{name}={PLACEHOLDER}"), 16)


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--eval_batch_size", "8"),
        ("--per_device_eval_batch_size=8",),
        ("--val-batch-size", "8"),
        ("--num-batches", "8"),
        ("--batch-size", "large"),
        ("--batch-size",),
        ("batch", "8"),
        ("--batch-size", "-8"),
        ("--log-every-batch", "3"),
    ],
)
def test_what_is_no_batch_size_stays(args: tuple[str, ...]) -> None:
    assert find_batch(args) == (args, None)


def test_only_the_first_is_taken() -> None:
    args, size = find_batch(["--batch", "8", "--batch", "9"])
    assert (args, size) == (("--batch", PLACEHOLDER, "--batch", "9"), 8)


@given(st.integers(1, 10_000), st.none() | st.integers(1, 100_000))
def test_other_sizes_are_others_above_one_and_in_reach(size: int, most: int | None) -> None:
    found = other_sizes(size, most)
    assert 1 <= len(found) <= 2
    assert len(set(found)) == len(found)
    assert size not in found and min(found) > 1
    if most is not None and most >= 2 * size:
        assert max(found) <= most
    if most is None:
        assert found == (2 * size, 4 * size)


def test_a_short_data_set_is_asked_for_smaller_sizes() -> None:
    assert other_sizes(8, 10) == (4, 2)
    assert other_sizes(8, 16) == (16, 4)
    assert other_sizes(1, 1) == (2,)


def sizes_of(loader: Any) -> list[int]:
    return [len(batch[0]) for batch in loader]


def test_loaders_of_the_first_size_are_changed_and_others_not() -> None:
    loaders = LoaderBatches(to=20)
    with loaders.watching():
        train, test = DataLoader(DATA, batch_size=10), DataLoader(DATA, 8)
        again = DataLoader(DATA, 10, shuffle=True)
    assert sizes_of(train) == sizes_of(again) == [20, 20]
    assert train.batch_size == 20
    assert sizes_of(test) == [8] * 5
    assert (loaders.of, loaders.changed) == (10, 2)


def test_loaders_of_a_given_size_are_changed() -> None:
    loaders = LoaderBatches(to=40, of=8)
    with loaders.watching():
        assert sizes_of(DataLoader(DATA, 10)) == [10] * 4
        assert sizes_of(DataLoader(DATA, batch_size=8)) == [40]
    assert loaders.changed == 1


def test_nothing_is_changed_without_being_asked() -> None:
    loaders = LoaderBatches()
    with loaders.watching():
        assert sizes_of(DataLoader(DATA, batch_size=10)) == [10] * 4
        assert sizes_of(DataLoader(DATA)) == [1] * 40
    assert (loaders.of, loaders.changed) == (10, 0)


def test_a_batch_sampler_keeps_its_size() -> None:
    loaders = LoaderBatches(to=4, of=1)
    with loaders.watching():
        sampler = BatchSampler(RandomSampler(DATA), 5, drop_last=False)
        assert sizes_of(DataLoader(DATA, batch_sampler=sampler)) == [5] * 8
    assert loaders.batch == 5
    assert loaders.changed == 0


def test_the_batch_is_that_of_the_loader_before_the_step() -> None:
    loaders = LoaderBatches()
    with loaders.watching():
        for _ in DataLoader(DATA, batch_size=20):  # statistics, before training
            pass
        assert loaders.batch == 20
        for step, _ in enumerate(DataLoader(DATA, batch_size=4), 1):
            loaders.stepped(step)
        for _ in DataLoader(DATA, batch_size=8):
            pass
    assert (loaders.batch, loaders.batches) == (4, 10)


def test_batches_a_step_are_the_fewest_between_steps() -> None:
    loaders = LoaderBatches()
    with loaders.watching():
        served = iter(DataLoader(DATA, batch_size=2))
        for step, count in enumerate((4, 3, 3), 1):  # the first reads one ahead
            for _ in range(count):
                next(served)
            loaders.stepped(step)
    assert loaders.accumulated == 3


def test_steps_without_a_loader() -> None:
    loaders = LoaderBatches()
    with loaders.watching():
        loaders.stepped(1)
        loaders.stepped(2)
    assert (loaders.batch, loaders.accumulated, loaders.batches) == (None, 0, None)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(100)


def test_a_stream_has_a_batch_size_and_no_length() -> None:
    loaders = LoaderBatches(to=6)
    with loaders.watching():
        assert len(next(iter(DataLoader(Endless(), batch_size=3)))) == 6
        loaders.stepped(1)
    assert (loaders.batch, loaders.batches) == (6, None)


def test_a_loader_that_does_not_batch() -> None:
    loaders = LoaderBatches(to=6)
    with loaders.watching():
        assert next(iter(DataLoader(Endless(), batch_size=None))) == 0
        loaders.stepped(1)
    assert loaders.batch is None


def test_everything_is_put_back() -> None:
    create, serve = DataLoader.__init__, torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    with pytest.raises(KeyError), LoaderBatches(to=3).watching():
        assert DataLoader.__init__ is not create
        raise KeyError
    assert DataLoader.__init__ is create
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is serve
