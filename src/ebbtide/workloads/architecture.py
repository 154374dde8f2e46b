"""What every architecture offers to the training loop and to inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ebbtide.workloads.options import WorkloadOptions

# None where neither the user nor a configuration says.
DTYPES: dict[str | None, torch.dtype] = {
    None: torch.float32,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Architecture(Protocol):
    """A model that can be built without weights, and the inputs it takes.

    Attributes:
        name: as a person would write it.
        default_batch: samples a step where none is asked for.
    """

    name: str
    default_batch: int

    def make_model(self, options: WorkloadOptions) -> nn.Module:
        """The model on the CPU, parameters in ``options.dtype``."""

    def make_inputs(
        self, options: WorkloadOptions, batch: int, device: torch.device
    ) -> Mapping[str, Any]:
        """What one call of the model takes, targets included unless for inference."""

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Call `model`."""

    def loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Call `model` and reduce what it returns to a scalar."""

    def decodes(self) -> bool:
        """Whether tokens are generated one by one, with a cache."""


class Running(Protocol):
    """A workload that has been built on a device.

    Attributes:
        model: on the device.
        optimizer: None in inference, and where the optimizer runs inside backward.
        batch: samples a step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    batch: int

    def step(self, i: int) -> None:
        """One training step, or one pass of inference; `i` counts from 0."""
