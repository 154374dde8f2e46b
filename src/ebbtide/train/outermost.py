"""Notice when a module is called that no other module calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


class OutermostCalls:
    """A context in which `called` is called before each outermost call of a module.

    Calls from other threads than the one that entered are not noticed.
    """

    def __init__(self, called: Callable[[], None]) -> None:
        self._called = called
        self._depth = 0
        self._thread = 0
        self._hooks: list[Any] = []

    def __enter__(self) -> OutermostCalls:
        self._depth = 0
        self._thread = threading.get_ident()
        self._hooks = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, module: Any, given: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth == 1:
            self._called()

    def _after(self, module: Any, given: Any, output: Any) -> None:
        if threading.get_ident() == self._thread:
            self._depth = max(0, self._depth - 1)
