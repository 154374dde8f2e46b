"""Operations that need more than the metadata of their outputs.

Each module fills a table from ATen overload to a handler
``handler(mode, func, args, kwargs) -> result``; `foreach` and `detection` decide by name.
"""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.vgpu.ops import (
    accumulate,
    attention,
    ctc,
    detection,
    dynamic,
    foreach,
    grouped,
    outputs,
    ranks,
    recurrent,
    transfer,
    transformer,
    values,
)

_TABLE: dict[Any, Any] = {}
for _module in (
    attention,
    dynamic,
    grouped,
    outputs,
    ranks,
    recurrent,
    transfer,
    transformer,
    values,
):
    _TABLE.update(_module.HANDLERS)
for _overload in accumulate.OVERLOADS:
    _TABLE[_overload] = accumulate.over_first(_TABLE.get(_overload))


def handler_for(func: Any) -> Any | None:
    """The handler of an ATen overload, or None if its metadata are enough."""
    return _TABLE.get(func) or foreach.handler_for(func) or detection.handler_for(func)


def register(mode: Any) -> torch.library.Library:
    """Take the place of CUDA's own dispatch stubs until the returned library is destroyed."""
    library = torch.library.Library("aten", "IMPL")
    attention.register(mode, library)
    ctc.register(mode, library)
    recurrent.register(mode, library)
    values.register(mode, library)
    return library
