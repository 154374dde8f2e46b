"""A model in training: what a step of it is."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ebbtide.errors import UsageError
from ebbtide.fitting.objective import LossFunction, objective_of
from ebbtide.plan.decision import Decision
from ebbtide.train.micro_batches_plan import plan_parts
from ebbtide.train.splitting import CannotSplitError, batch_size
from ebbtide.train.splitting_check import verify_split


@dataclass(frozen=True, slots=True)
class Work:
    """A model, its optimizer and its loss."""

    model: nn.Module
    optimizer: Optimizer
    loss_fn: LossFunction | None

    def copied(self) -> Work:
        """The same with tensors of its own.

        Raises:
            UsageError: the model holds something that cannot be copied.
        """
        memo: dict[int, Any] = {}
        try:
            model = copy.deepcopy(self.model, memo)
        except Exception as error:  # from anybody's `__deepcopy__`
            raise UsageError(
                f"The model ({type(self.model).__name__}) cannot be copied, so that its step could "
                f"be tried without changing it: {error}. Delete what cannot be copied from it."
            ) from error
        return Work(model, optimizer_on(self.optimizer, memo), self.loss_fn)


def optimizer_on(optimizer: Optimizer, memo: dict[int, Any], *, state: bool = True) -> Optimizer:
    """A copy of the optimizer for other parameters.

    Args:
        optimizer: what to copy; its hooks and schedulers stay with it.
        memo: by `id` of a parameter, the one that takes its place.
        state: whether the state is copied too.
    """
    if not state:
        memo[id(optimizer.state)] = defaultdict(dict)
    made = copy.deepcopy(optimizer, memo)
    for name, value in vars(optimizer).items():
        # PyTorch copies no attributes of subclasses; `step` may be a scheduler's wrapper.
        if name not in vars(made) and name != "step" and not name.endswith("_hooks"):
            setattr(made, name, copy.deepcopy(value, memo))
    return made


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors in nested mappings, tuples and lists."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [each for item in value.values() for each in tensors_of(item)]
    if isinstance(value, tuple | list):
        return [each for item in value for each in tensors_of(item)]
    return []


def bytes_of(work: Work, batch: Any) -> int:
    """Bytes of the distinct storages of parameters, buffers, optimizer state and `batch`."""
    found = [*work.model.parameters(), *work.model.buffers(), *tensors_of(batch)]
    found += [each for state in work.optimizer.state.values() for each in tensors_of(state)]
    storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in found}
    return sum(storage.nbytes() for storage in storages.values())


def samples_of(batch: Any) -> int:
    """Samples of `batch`: its first dimension where it has one that can be taken in parts."""
    try:
        return batch_size(batch)
    except CannotSplitError:
        return 1


def check_split(work: Work, batch: Any, decision: Decision) -> None:
    """Refuse to take `batch` in parts where that changes more than the order of sums.

    Raises:
        CannotSplitError: with the reason; nothing has been changed.
    """
    if decision.micro_batches > 1:
        objective = objective_of(work.model, work.loss_fn)
        parameters = list(work.model.parameters())
        verify_split(objective, parameters, batch, decision.micro_batches).require()
        plan_parts(objective, parameters, batch, decision.micro_batches)
