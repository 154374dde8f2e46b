"""A safetensors file without a configuration: its tensors on the device, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ebbtide.errors import TargetError, UsageError
from ebbtide.workloads.checkpoint import Checkpoint
from ebbtide.workloads.options import WorkloadOptions

TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "C64": torch.complex64, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


class StoredTensors:
    """Weights whose model is unknown: only their own bytes can be predicted.

    Args:
        checkpoint: with no configuration beside it.
        name: as the user wrote it.
    """

    default_batch = 1

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.name = name
        self._tensors = checkpoint.tensors

    def make_model(self, options: WorkloadOptions) -> nn.Module:
        """A module that holds each tensor as it is stored."""
        if not self._tensors:
            raise TargetError(f"{self.name} holds no tensors")
        if not options.inference:
            raise UsageError(
                f"{self.name} has no config.json beside it, so only its weights can be placed, "
                "for inference. Leave the options of training away, or put the model's "
                "config.json there."
            )
        module = nn.Module()
        for i, stored in enumerate(self._tensors.values()):
            tensor = torch.empty(stored.shape, dtype=TORCH[stored.dtype])
            module.register_parameter(f"tensor_{i}", nn.Parameter(tensor, requires_grad=False))
        return module

    def make_inputs(
        self, options: WorkloadOptions, batch: int, device: torch.device
    ) -> Mapping[str, Any]:
        """None: nothing is computed."""
        return {}

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Nothing is computed."""
        return None

    def loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """There is none."""
        raise UsageError(f"{self.name} cannot be trained: its model is unknown")

    def decodes(self) -> bool:
        """Never."""
        return False
