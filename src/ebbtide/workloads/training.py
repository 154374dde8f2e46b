"""The ordinary training loop, as most people write it."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.optim import Optimizer

from ebbtide.errors import UsageError
from ebbtide.workloads.architecture import DTYPES, Architecture
from ebbtide.workloads.lora import add_lora
from ebbtide.workloads.optimizers import make_optimizer, step_in_backward
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.quantize import quantize


class Training:
    """A model being trained.

    Args:
        architecture: what to build.
        options: how; `options.batch` falls back to the architecture's default.
        device: where, e.g. ``"cuda"``.

    Raises:
        TargetError: the architecture cannot be built.
        UsageError: an option that this model does not have.
    """

    def __init__(
        self, architecture: Architecture, options: WorkloadOptions, device: torch.device | str
    ) -> None:
        self.architecture = architecture
        self.options = options
        self.device = torch.device(device)
        self.batch = options.batch or architecture.default_batch
        self.model = self._build()
        self.optimizer: Optimizer | None = None
        self.scaler = torch.amp.GradScaler(self.device.type) if options.amp == "fp16" else None
        self._in_backward: list[Optimizer] = []
        if options.optimizer_in_backward and options.optimizer != "none":
            self._in_backward = step_in_backward(self.model, options)
        elif options.optimizer != "none":
            self.optimizer = make_optimizer(self.model.parameters(), options)

    def _build(self) -> nn.Module:
        self.options.check_trainable()
        model = self.architecture.make_model(self.options)
        if self.options.quantize is not None:
            quantize(model, self.options.quantize, DTYPES[self.options.dtype])
        model.to(self.device)
        if self.options.lora is not None:
            model = add_lora(model, self.options.lora)
        model.train()
        if self.options.checkpointing:
            enable_checkpointing(model, self.architecture.name)
        return model

    def step(self, i: int) -> None:
        """Gradients of `grad_accum` batches, then one step of the optimizer."""
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        elif not self._in_backward:
            self.model.zero_grad()
        for _ in range(self.options.grad_accum):
            self._gradients()
        if self.optimizer is None:
            return
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _gradients(self) -> None:
        inputs = self.architecture.make_inputs(self.options, self.batch, self.device)
        with self._autocast():
            loss = self.architecture.loss(self.model, inputs)
        if self.options.grad_accum > 1:
            loss = loss / self.options.grad_accum
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        torch.autograd.backward(loss)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.options.amp is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.options.amp])


def enable_checkpointing(model: nn.Module, name: str) -> None:
    """Turn on the model's own recomputation of activations.

    Raises:
        UsageError: the model has none.
    """
    target = getattr(model, "base_model", model)
    target = getattr(target, "model", target) if type(model).__name__.startswith("Peft") else model
    for switch in ("gradient_checkpointing_enable", "set_grad_checkpointing"):
        enable = getattr(target, switch, None)
        if enable is None:
            continue
        try:
            with warnings.catch_warnings():
                # Newer releases of Transformers call the same switch by another name.
                warnings.simplefilter("ignore")
                enable()
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise UsageError(f"checkpointing: {name} does not support it: {error}") from error
        return
    raise UsageError(
        f"checkpointing: {name} has no checkpointing of its own. "
        "Use torch.utils.checkpoint in a script and predict that."
    )
