"""What kernel choice and workspace sizes depend on, besides the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# What the wheels on PyPI were built with and require, since each release: CUDA and cuDNN
# (Requires-Dist of torch 2.0.1 to 2.13.0, read 2026-12-01).
_BUILDS = (
    ((2, 12), (13, 0), 92000),
    ((2, 11), (13, 0), 91900),
    ((2, 8), (12, 8), 91002),
    ((2, 7), (12, 6), 90501),
    ((2, 5), (12, 4), 90100),
    ((2, 4), (12, 1), 90100),
    ((2, 1), (12, 1), 8902),
    ((0, 0), (11, 7), 8500),
)
# CUDA C programming guide, table "Technical specifications per compute capability".
_THREADS_PER_SM = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536, 121: 1536}


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

    @classmethod
    def of(
        cls,
        capability: tuple[int, int],
        torch_version: tuple[int, int],
        sm_count: int,
        environment: Mapping[str, str],
    ) -> KernelContext:
        """That of a GPU under the wheel of a torch release from PyPI, with default switches."""
        _, cuda, cudnn = next(build for build in _BUILDS if torch_version >= build[0])
        return cls(
            capability=capability,
            torch_version=torch_version,
            cudnn_version=cudnn,
            cuda_version=cuda,
            sm_count=sm_count,
            threads_per_sm=_THREADS_PER_SM.get(capability[0] * 10 + capability[1], 2048),
            environment=MappingProxyType(dict(environment)),
        )

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
