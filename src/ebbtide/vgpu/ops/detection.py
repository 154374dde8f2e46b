"""Operators of torchvision whose result depends on values.

They exist once torchvision is imported, so they are found by name.

Source: torchvision/csrc/ops/cuda/nms_kernel.cu of pytorch/vision @ 01d5d107; since 0.21
the kept boxes are gathered on the GPU instead of the host.
"""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.vgpu.tape import SYNC

_aten = torch.ops.aten
_BOXES_A_WORD = 64


def _nms(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Boxes by score, without those that overlap a better one: none is taken to overlap."""
    boxes, scores = args[:2]
    count = boxes.shape[0]
    if not count:
        return _long(mode, boxes, 0)
    mode.note("nms", "non-maximum suppression on the GPU: every box is taken as kept")
    order = mode.call(_aten.sort.default, scores, 0, True)[1]
    chosen = mode.call(_aten.index_select.default, boxes, 0, order)
    mode.record_only(func, args, kwargs)
    overlaps = _long(mode, boxes, count * -(-count // _BOXES_A_WORD))
    keep = mode.call(_aten.zeros.default, [count], dtype=torch.bool, device=boxes.device)
    mode.tape.event(SYNC)
    kept = _long(mode, boxes, count)
    del chosen, overlaps, keep  # held until here, as in the kernel
    # Some order of all: which one is not known, but each is there once.
    if mode.shadows.small([count], torch.int64):
        with torch.utils._python_dispatch._disable_current_modes():
            mode.shadows.remember(kept, torch.arange(count))
    return kept


def _long(mode: Any, like: torch.Tensor, count: int) -> torch.Tensor:
    made: torch.Tensor = mode.new_tensor((count,), like, torch.int64)
    return made


_HANDLERS = {"torchvision::nms": _nms}


def handler_for(func: Any) -> Any | None:
    """The handler of an operator of torchvision, or None."""
    return _HANDLERS.get(func._schema.name)
