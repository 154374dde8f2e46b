"""A virtual GPU for the tests of what it answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from ebbtide.vgpu.virtual_gpu import VirtualGpu  # noqa: E402


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    """An L4 that is on for the test."""
    with VirtualGpu("l4") as virtual:
        yield virtual
