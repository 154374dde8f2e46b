"""`torch.distributed` with one process."""

from __future__ import annotations

from ebbtide.vgpu.api.surface import Surface
from ebbtide.vgpu.patches import PatchSet


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Nothing yet."""
