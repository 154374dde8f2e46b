"""The other tools, each used as its documentation shows, without a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from measured.meter import CountingMeter
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from .subject import Subject, call

STEPS = 2


@contextmanager
def without_values() -> Iterator[None]:
    """Leave weights as they are: some initialisers read values, which fake tensors lack."""

    def keep(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [name for name in dir(nn.init) if name.endswith("_") and name[0] != "_"]
        with patch.multiple(nn.init, **dict.fromkeys(names, keep)):
            yield


def accelerate(subject: Subject) -> int:
    """`accelerate estimate-memory`: its own arithmetic on a model without weights.

    The command reads the architecture from the hub; here it gets the same model built on
    the meta device. For training it is the figure of its last column, for inference the
    model's size.
    """
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with without_values(), torch.device("meta"):
        model = subject.build()
    total, _ = calculate_maximum_sizes(model)
    if subject.optimizer is None:
        return int(total)
    return int(max(estimate_training_usage(int(total), subject.precision).values()))


def torchinfo(subject: Subject) -> int:
    """`torchinfo.summary`: its "Estimated Total Size", on the meta device."""
    import torchinfo as tool

    with without_values(), torch.device("meta"):
        model, batch = subject.build(), subject.batch()
    inputs: Any = {key: value for key, value in batch.items() if key != "target"}
    if set(inputs) == {"input"}:
        inputs = [inputs["input"]]
    mode = "eval" if subject.optimizer is None else "train"
    found = tool.summary(model, input_data=inputs, device="meta", verbose=0, mode=mode)
    return int(found.total_input + found.total_output_bytes + found.total_param_bytes)


def mem_tracker(subject: Subject) -> int:
    """`torch.distributed._tools.mem_tracker.MemTracker`: the peak of two steps on fake tensors."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with without_values(), FakeTensorMode():
        model = subject.build()
        optimizer = _optimizer(subject, model)
        tracker = MemTracker()
        external = [model] if optimizer is None else [model, optimizer]
        tracker.track_external(*external)
        with tracker:
            _steps(subject, model, optimizer, tracker.reset_mod_stats)
        peak = tracker.get_tracker_snapshot("peak")
    return int(max(figures["Total"] for figures in peak.values()))


def fake_counting(subject: Subject) -> int:
    """Count the storages of two steps on fake CPU tensors."""
    meter = CountingMeter()
    with without_values(), FakeTensorMode(), meter:
        model = subject.build()
        _steps(subject, model, _optimizer(subject, model))
        return meter.peak()


TOOLS: dict[str, Callable[[Subject], int]] = {
    "accelerate estimate-memory": accelerate,
    "torchinfo": torchinfo,
    "MemTracker": mem_tracker,
    "fake tensors": fake_counting,
}


def _optimizer(subject: Subject, model: nn.Module) -> torch.optim.Optimizer | None:
    if subject.optimizer is None:
        return None
    make = getattr(torch.optim, subject.optimizer)
    optimizer: torch.optim.Optimizer = make(model.parameters(), lr=0.001)
    return optimizer


def _steps(
    subject: Subject,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    between: Callable[[], None] = lambda: None,
) -> None:
    """`STEPS` of training, or forward passes; `between` is called after each."""
    model.train(optimizer is not None)
    for _ in range(STEPS):
        if optimizer is None:
            with torch.no_grad():
                call(model, subject.batch())
        else:
            subject.loss(model, subject.batch()).backward()
            optimizer.step()
            optimizer.zero_grad()
        between()
