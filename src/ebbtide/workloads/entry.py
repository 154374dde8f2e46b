"""`module:function` as a workload: a function that returns model, optimizer and batch.

    def build(batch: int = 8):
        model = Net().cuda()
        return model, torch.optim.AdamW(model.parameters()), torch.randn(batch, 3, 224, 224)

A model that is wholly on the CPU is moved to `cuda`, as the batch is. The optimizer may
be a class such as ``torch.optim.AdamW``, made with the model's parameters then.

It may return a loss function as a fourth item, called with the model's output and
the batch. Without one the output itself is the loss, or has it as ``.loss``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ebbtide.errors import TargetError, UsageError
from ebbtide.vgpu.virtual_gpu import VirtualGpu

_BATCH_NAMES = ("batch", "batch_size")


def load_function(target: str) -> Callable[..., Any]:
    """The function that ``"module:function"`` or ``"path/file.py:function"`` names.

    Raises:
        TargetError: the module cannot be imported or has no such function.
    """
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise TargetError(f"{target!r} is no `module:function`.")
    if place.endswith(".py") or os.sep in place:
        path = Path(place)
        if not path.is_file():
            raise TargetError(f"There is no file {place!r} to take {name!r} from.")
        sys.path.insert(0, str(path.resolve().parent))
        place = path.stem
    elif "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(place)
    except ImportError as error:
        raise TargetError(f"{place!r} cannot be imported: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        near = [n for n, v in vars(module).items() if inspect.isfunction(v)][:8]
        raise TargetError(
            f"{place!r} has no function {name!r}; it has: {', '.join(near) or 'none'}."
        )
    return function  # type: ignore[no-any-return]


class FunctionWorkload:
    """What a user's function built, ready to be stepped.

    Args:
        function: returns ``(model, optimizer or None, batch[, loss function])``.
        batch: batch size to build it at, None for the function's own.
        name: for messages.
        inference: run forward only even if there is an optimizer.

    Raises:
        TargetError: the function returned something else.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        batch: int | None,
        name: str,
        inference: bool = False,
    ) -> None:
        self.name = name
        parts = self._call(function, batch)
        if not isinstance(parts, tuple | list) or not 3 <= len(parts) <= 4:
            got = f"{len(parts)} items" if isinstance(parts, tuple | list) else type(parts).__name__
            raise TargetError(
                f"{name} should return (model, optimizer or None, batch) or "
                f"(model, optimizer, batch, loss function); it returned {got}."
            )
        self.model, self.optimizer, data, *rest = parts
        if not isinstance(self.model, torch.nn.Module):
            raise TargetError(
                f"{name} should return a torch.nn.Module first, not {type(self.model).__name__}."
            )
        _move_to_cuda(self.model)
        if isinstance(self.optimizer, type) and hasattr(self.optimizer, "step"):
            self.optimizer = self.optimizer(self.model.parameters())
        if self.optimizer is not None and not hasattr(self.optimizer, "step"):
            raise TargetError(
                f"{name} should return an optimizer or None second, not "
                f"{type(self.optimizer).__name__}."
            )
        self._loss = rest[0] if rest else None
        if self._loss is not None and not callable(self._loss):
            raise TargetError(
                f"{name} should return a loss function fourth, not {type(self._loss).__name__}."
            )
        self.inference = inference or (self.optimizer is None and self._loss is None)
        self.batch = batch if batch is not None else batch_of(data)
        self._data = data if self._takes_batch or batch is None else resized(data, batch)

    def _call(self, function: Callable[..., Any], batch: int | None) -> Any:
        names = inspect.signature(function).parameters
        found = [name for name in _BATCH_NAMES if name in names]
        self._takes_batch = bool(found)
        unset = [
            name
            for name, parameter in names.items()
            if name not in found
            and parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if unset:
            raise TargetError(
                f"{self.name} needs values for {', '.join(unset)}, which nobody gives it. "
                f"Give them defaults; only {' or '.join(_BATCH_NAMES)} is set from --batch."
            )
        if batch is not None and found:
            return function(**{found[0]: batch})
        if found and names[found[0]].default is names[found[0]].empty:
            raise UsageError(f"{self.name} needs a batch size: give --batch, or a default.")
        return function()

    def step(self) -> None:
        """One training step, or one forward pass."""
        data = _to_cuda(self._data)
        if self.inference:
            with torch.no_grad():
                self._forward(data)
            return
        output = self._forward(data)
        loss = loss_of(output) if self._loss is None else one_value(self._loss(output, data))
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _forward(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            return self.model(**data)
        if isinstance(data, tuple | list):
            # (input, target) pairs: the target is for the loss function.
            return self.model(data[0]) if self._loss is not None else self.model(*data)
        return self.model(data)


def loss_of(output: Any) -> torch.Tensor:
    """The loss in what a model returned: ``.loss``, ``["loss"]``, the first item, or all of it.

    Raises:
        TargetError: there is none.
    """
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if loss is None and isinstance(output, tuple | list) and output:
        loss = output[0]
    if loss is None:
        loss = output
    if not isinstance(loss, torch.Tensor):
        raise TargetError(
            f"The model returns {type(output).__name__}, in which no loss is found. "
            "Give a loss function: as the fourth item that `module:function` returns, or as "
            "`loss` of `ebbtide.predict`."
        )
    if loss.dim() == 0:
        return loss
    if loss.numel() > 1:
        text = "No loss was given: the sum of the output is taken; a real loss may need more"
        VirtualGpu.assume("loss", text)
    return loss.sum()


def one_value(loss: Any) -> torch.Tensor:
    """What a loss function returned, if it has gradients as a number has."""
    rule = "The loss function should return a tensor of one value, as `output.mean()` does"
    if not isinstance(loss, torch.Tensor):
        raise TargetError(f"{rule}; it returned {type(loss).__name__}.")
    if loss.numel() != 1:
        raise TargetError(f"{rule}; it returned a tensor of shape {tuple(loss.shape)}.")
    return loss


def _move_to_cuda(model: torch.nn.Module) -> None:
    """Move a model that is on the CPU; one that is spread on purpose stays as it is.

    The parameters stay the same objects, so that an optimizer made before still has them.
    """
    devices = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    if devices == {"cpu"} and torch.cuda.is_available():
        model.to("cuda")


def _to_cuda(value: Any) -> Any:
    return mapped(value, lambda tensor: tensor.to("cuda"))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with every tensor in its containers changed; mappings become dicts."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):  # Transformers' BatchEncoding is no dict
        return {name: mapped(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def batch_of(value: Any) -> int | None:
    """The first dimension of the first tensor in `value`."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.dim() else None
    if isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            found = batch_of(item)
            if found is not None:
                return found
    return None


def resized(value: Any, batch: int) -> Any:
    """`value` with the batch dimension of every tensor made `batch` long."""
    now = batch_of(value)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() and tensor.shape[0] == now:
            return tensor[:1].expand(batch, *tensor.shape[1:]).clone()
        return tensor

    return mapped(value, change)
