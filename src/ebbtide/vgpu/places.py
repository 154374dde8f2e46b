"""Where the program is: the module and the source line an operation belongs to.

In a forward pass the module comes from hooks, the line from the first frame
outside PyTorch. In a backward pass neither is on the stack, so each forward
operation is filed under the sequence number that its autograd node gets, and
the node that is running leads back to it.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from ebbtide.vgpu.tape import Tape

# In place of an output: the module has only been entered.
ENTERED: Any = object()
_TORCH = os.path.dirname(torch.__file__) + os.sep
_EBBTIDE = str(Path(__file__).parents[1]) + os.sep
_sequence = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_current_node = torch._C._current_autograd_node


class Places:
    """Knows the current module and line, and remembers those of the forward pass.

    Attributes:
        in_backward: set while the autograd engine runs.
        on_root: called with an outermost module and its output when it is left, and with
            `ENTERED` in place of the output when it is entered.
        on_engine: called with True when the engine starts, with False when it has ended;
            not for an engine run inside another.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.in_backward = False
        self.on_root: Callable[[torch.nn.Module, Any], None] | None = None
        self.on_engine: Callable[[bool], None] | None = None
        self._stack: list[int] = []
        self._forward: dict[int, tuple[int, int]] = {}
        self._skipped: dict[CodeType, bool] = {}
        self._line_numbers: dict[tuple[CodeType, int], int] = {}
        self._paths: dict[int, int] = {}
        # Modules are not held: a model that the program drops gives its memory back.
        self._known: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._hooks: list[Any] = []

    @property
    def roots(self) -> tuple[torch.nn.Module, ...]:
        """Every outermost module that has been called and is still there."""
        return tuple(self._roots)

    def now(self) -> tuple[int, int]:
        """Numbers of the current module and source line in the tape."""
        stack = self._stack
        if self.in_backward and not stack:
            node = _current_node()
            if node is not None:
                known = self._forward.get(node._sequence_nr())
                return known if known is not None else (0, self._line())
        place = (stack[-1] if stack else 0, self._line())
        if not self.in_backward and torch._C.is_grad_enabled():
            self._forward.setdefault(_sequence() - 1, place)
        return place

    def wrap_engine(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        """`engine` (autograd's), with a note of when it runs."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self.in_backward:
                return engine(*args, **kwargs)
            self.in_backward = True
            if self.on_engine is not None:
                self.on_engine(True)
            try:
                return engine(*args, **kwargs)
            finally:
                self.in_backward = False
                if self.on_engine is not None:
                    self.on_engine(False)

        return run

    def forget(self) -> None:
        """Drop what the last forward pass filed: its backward is over."""
        self._forward.clear()

    def _line(self) -> int:
        frame = sys._getframe(3)
        skipped = self._skipped
        while frame is not None:
            code = frame.f_code
            skip = skipped.get(code)
            if skip is None:
                name = code.co_filename
                skip = name.startswith((_TORCH, _EBBTIDE, "<"))
                skipped[code] = skip
            if not skip:
                number = self._line_numbers.get((code, frame.f_lineno))
                return number if number is not None else self._number(code, frame.f_lineno)
            if frame.f_back is None:
                break
            frame = frame.f_back
        return 0

    def _number(self, code: CodeType, line: int) -> int:
        path = code.co_filename
        _, found, tail = path.rpartition("site-packages" + os.sep)
        if not found:
            tail = os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path
        number = self._tape.lines.of(f"{tail}:{line} in {code.co_name}")
        self._line_numbers[code, line] = number
        return number

    # -- modules

    def watch(self) -> None:
        """Hook every module's forward."""
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def unwatch(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._stack.clear()
        self._roots.clear()
        self._known.clear()
        self._paths.clear()

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        if not self._stack and self.on_root is not None:
            self.on_root(module, ENTERED)
        number = self._paths.get(id(module))
        if number is None:
            number = self._name(module)
        self._stack.append(number)

    def _leave(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        if not self._stack and self.on_root is not None:
            self.on_root(module, output)

    def _name(self, module: torch.nn.Module) -> int:
        if not self._stack:
            for path, child in module.named_modules():
                self._learn(child, path or type(module).__name__)
        else:
            outer = self._tape.modules.items[self._stack[-1]]
            self._learn(module, f"{outer}/{type(module).__name__}")
        self._roots.add(module)
        return self._paths[id(module)]

    def _learn(self, module: torch.nn.Module, label: str) -> None:
        key = id(module)
        if key in self._paths:
            return

        places = weakref.ref(self)

        def forget(_: Any) -> None:
            alive = places()
            if alive is not None:  # the id may be another module's from now on
                alive._paths.pop(key, None)
                alive._known.pop(key, None)

        self._paths[key] = self._tape.modules.of(label)
        self._known[key] = weakref.ref(module, forget)
