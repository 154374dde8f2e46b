"""Operations that need more than the metadata of their outputs.

Each module fills a table from ATen overload to a handler
``handler(mode, func, args, kwargs) -> result``; `foreach` decides by name.
"""

from __future__ import annotations

from typing import Any

from ebbtide.vgpu.ops import attention, dynamic, foreach, transfer, values

_TABLE: dict[Any, Any] = {}
for _module in (attention, dynamic, transfer, values):
    _TABLE.update(_module.HANDLERS)


def handler_for(func: Any) -> Any | None:
    """The handler of an ATen overload, or None if its metadata are enough."""
    return _TABLE.get(func) or foreach.handler_for(func)
