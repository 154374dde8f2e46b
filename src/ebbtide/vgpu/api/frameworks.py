"""What libraries on top of PyTorch need besides PyTorch's own answers."""

from __future__ import annotations

from ebbtide.vgpu.api.surface import Surface
from ebbtide.vgpu.patches import PatchSet


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Nothing yet."""
