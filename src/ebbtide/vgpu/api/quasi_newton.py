"""`torch.optim.LBFGS`: its history is as long as it will get.

A step of it ends early where the loss does not change, and the virtual GPU's does not. On
a GPU the history grows by two vectors of all parameters an iteration, to ``history_size``
of each kind, after five steps with the defaults (torch/optim/lbfgs.py, 2.13): long after
the few steps that are traced. So from the second step on it is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import LBFGS

from ebbtide.vgpu.api.surface import Surface, active
from ebbtide.vgpu.patches import PatchSet

_HELD = ("old_dirs", "old_stps")


def _fill(vgpu: Surface, optimizer: LBFGS) -> None:
    """Lengthen both lists of vectors to `history_size`."""
    parameters = optimizer.param_groups[0]["params"]
    state = optimizer.state.get(parameters[0], {})
    last = state.get("prev_flat_grad")
    size = optimizer.param_groups[0]["history_size"]
    if last is None or not last.is_cuda or len(state["ro"]) >= size:
        return
    with torch.no_grad():
        for name in _HELD:
            state[name] += [torch.empty_like(last) for _ in range(size - len(state[name]))]
        state["ro"] += [last.new_ones(()) for _ in range(size - len(state["ro"]))]
    vgpu.guess("lbfgs", f"LBFGS: its history of {size} steps is taken to be full from step 2 on")


def _step(vgpu: Surface, original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, closure: Callable[[], Any]) -> Any:
        if active(vgpu):
            _fill(vgpu, self)
        return original(self, closure)

    return step


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Fill the history before each step."""
    patches.wrap(LBFGS, "step", lambda original: _step(vgpu, original))
