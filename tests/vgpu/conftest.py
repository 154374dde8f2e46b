"""A virtual GPU for tests, and a look at what it wrote down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ebbtide.vgpu.virtual_gpu import VirtualGpu  # noqa: E402


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    """An L4 that is on for the test."""
    with VirtualGpu("l4") as virtual:
        yield virtual


@pytest.fixture
def op_names(gpu: VirtualGpu) -> Callable[[], list[str]]:
    """Names of the operations since the last call, without the namespace."""
    seen = [0]

    def names() -> list[str]:
        numbers = gpu.tape.op_name[seen[0] :]
        seen[0] = len(gpu.tape.op_name)
        return [gpu.tape.names.items[number].removeprefix("aten::") for number in numbers]

    return names


@pytest.fixture
def allocated(gpu: VirtualGpu) -> Callable[[], list[int]]:
    """Bytes of the allocations since the last call, in order."""
    seen = [0]

    def sizes() -> list[int]:
        made: list[Any] = gpu.tape.alloc_bytes[seen[0] :]
        seen[0] = len(gpu.tape.alloc_bytes)
        return made

    return sizes
