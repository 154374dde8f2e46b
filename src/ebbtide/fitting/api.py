"""`ebbtide.fit`: a plan for a model."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ebbtide.errors import UsageError
from ebbtide.fitting.live import LiveSubject
from ebbtide.fitting.making import made
from ebbtide.fitting.objective import LossFunction, objective_of
from ebbtide.fitting.plan import Plan
from ebbtide.fitting.planner import find_plan
from ebbtide.fitting.virtual import VirtualSubject, room
from ebbtide.fitting.virtual_work import making
from ebbtide.fitting.work import Work, check_split, samples_of
from ebbtide.gpus import Gpu, find
from ebbtide.units import parse_bytes
from ebbtide.workloads.caller import apart_from_caller


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    batch: Any,
    loss_fn: LossFunction | None = None,
    *,
    budget: str | int | None = None,
    gpu: str | Gpu | None = None,
    exact: bool = False,
) -> Plan:
    """What makes a training step of `model` fit a budget, at the least cost.

    The model, its optimizer, the gradients and all random generators stay as they are: steps
    are taken by a copy. With `gpu` the copy has no data and runs on a virtual GPU; without,
    it really runs, on the CPU.

    Args:
        model: in the mode it is trained in.
        optimizer: of its parameters.
        batch: an example as it is trained with: a tensor, or a tuple, list or dict of them.
        loss_fn: see `objective_of`; None where the model returns its loss, alone or as ``.loss``.
        budget: bytes, or text such as ``"8GiB"``: the most that may be allocated at once, with
            parameters, gradients and optimizer state. Default: what `gpu` has for PyTorch.
        gpu: a name of the catalogue, or a `Gpu`, to plan for.
        exact: whether every bit has to be that of the plain step. Else the batch may be split
            and the optimizer fused: by that sums come in another order.

    Raises:
        DoesNotFitError: nothing fits; the message says what would.
        UsageError, UnknownGpuError: the arguments cannot be understood.
    """
    spec = find(gpu) if isinstance(gpu, str) else gpu
    limit = budget_of(budget, spec)
    _check(model, optimizer)
    objective_of(model, loss_fn)
    work = Work(model, optimizer, loss_fn)
    with apart_from_caller():
        if spec is None:
            found = find_plan(LiveSubject(work, batch), limit, exact=exact)
        else:
            size = samples_of(batch)
            subject = VirtualSubject(
                making(work, batch),
                spec,
                steps=True,
                batch_size=size,
                check=lambda decision: check_split(work, batch, decision),
            )
            found = find_plan(subject, limit, exact=exact)
    where = spec.key if spec is not None else "cpu"
    return made(found, limit, where=where, work=work)


def budget_of(budget: str | int | None, gpu: Gpu | None) -> int:
    """Bytes that were meant.

    Raises:
        UsageError: none were, or no positive number.
    """
    if budget is None:
        if gpu is None:
            raise UsageError("Say how much memory there is: budget='8GiB', or gpu='l4'.")
        return room(gpu)
    if isinstance(budget, str):
        found = parse_bytes(budget)
    elif isinstance(budget, bool) or not isinstance(budget, int | float):
        raise UsageError(f"budget: expected bytes or text such as '8GiB', got {budget!r}.")
    elif not math.isfinite(budget):
        raise UsageError(f"budget: expected bytes or text such as '8GiB', got {budget!r}.")
    else:
        found = int(budget)
    if found <= 0:
        raise UsageError(f"budget: expected more than 0 bytes, got {budget!r}.")
    return found


def _check(model: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(optimizer, Optimizer):
        raise UsageError(
            f"optimizer: expected an instance such as torch.optim.AdamW(model.parameters()), got "
            f"{type(optimizer).__name__}."
        )
    own = {id(each) for each in model.parameters()}
    given = [each for group in optimizer.param_groups for each in group["params"]]
    if given and not any(id(each) in own for each in given):
        raise UsageError("optimizer: none of its parameters is one of the model's.")
