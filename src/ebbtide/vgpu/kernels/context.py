"""What kernel choice and workspace sizes depend on, besides the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelContext:
    """The GPU, the versions and the switches that decide which kernel runs.

    `environment` holds the environment variables that PyTorch itself reads
    (``CUBLAS_WORKSPACE_CONFIG`` and its like); it is compared but not hashed.
    """

    capability: tuple[int, int]
    torch_version: tuple[int, int]
    cudnn_version: int = 90100
    """As `torch.backends.cudnn.version()` gives it: 90100 is 9.1.0."""
    cuda_version: tuple[int, int] = (12, 4)
    """Of the toolkit that PyTorch was built with."""
    sm_count: int = 108
    threads_per_sm: int = 2048
    """Resident threads a multiprocessor holds: 1,536 on 8.6, 8.9 and 12.x, 1,024 on 7.5."""
    cudnn_enabled: bool = True
    cudnn_benchmark: bool = False
    cudnn_allow_tf32: bool = True
    matmul_allow_tf32: bool = False
    deterministic: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @property
    def sm(self) -> int:
        """Compute capability as one number: 86 for 8.6, 120 for 12.0."""
        return self.capability[0] * 10 + self.capability[1]

    def flag(self, name: str) -> bool | None:
        """The environment variable `name` as PyTorch's `check_env` reads a switch.

        None when it is unset or neither a yes nor a no
        (c10/util/env.cpp: "1", "y", "yes", "true", "on" in upper, lower or title case).
        """
        value = self.environment.get(name, "").lower()
        if value in {"1", "y", "yes", "true", "on"}:
            return True
        if value in {"0", "n", "no", "false", "off"}:
            return False
        return None
