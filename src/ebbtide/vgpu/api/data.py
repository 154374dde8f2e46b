"""Data loaders: workers compute real batches, outside the virtual GPU."""

from __future__ import annotations

from torch.utils.data._utils import worker

from ebbtide.vgpu.api.surface import Surface
from ebbtide.vgpu.api.threads import outside
from ebbtide.vgpu.patches import PatchSet


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Make loader workers leave the virtual GPU."""
    patches.wrap(worker, "_worker_loop", outside)
