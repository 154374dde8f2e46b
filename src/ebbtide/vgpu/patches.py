"""Replace attributes, and put back exactly what was there.

The virtual GPU answers for `torch.cuda` by replacing functions and classes of
PyTorch while it is on. A `PatchSet` remembers each of them and undoes all in
reverse order, also after an error, so that nothing is left behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from types import ModuleType, TracebackType
from typing import Any

_ABSENT: Any = object()
_KEEP = ("ebbtide.", "torch._C")


class PatchSet:
    """Replacements that are undone together.

    Used as a context manager, or by calling `undo`. Undoing twice does nothing
    the second time; a set can be filled again afterwards.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> PatchSet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def __len__(self) -> int:
        return len(self._undo)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Make `owner.name` be `value`.

        What is remembered is the entry in the owner's own dictionary, so that a
        class gets its `staticmethod` or descriptor back and an attribute that
        was inherited, or missing, is deleted again.
        """
        before = _own(owner, name)
        setattr(owner, name, value)
        if _own(owner, name) is _ABSENT:
            # A property or a slot: the object has no entry to put back.
            raise TypeError(f"{owner!r} keeps {name!r} elsewhere; it cannot be replaced safely")

        def back() -> None:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(back)

    def set_all(self, owner: Any, values: MutableMapping[str, Any]) -> None:
        """`set` for each name and value."""
        for name, value in values.items():
            self.set(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by ``make(what it is now)``."""
        self.set(owner, name, make(getattr(owner, name)))

    def set_item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Make `mapping[key]` be `value`."""
        before = mapping.get(key, _ABSENT)
        mapping[key] = value

        def back() -> None:
            if before is _ABSENT:
                mapping.pop(key, None)
            else:
                mapping[key] = before

        self._undo.append(back)

    def everywhere(self, replacements: list[tuple[Any, Any]]) -> None:
        """Replace objects in every module that holds them by any name.

        Reaches the names that a module took by ``from torch.cuda import Stream``;
        PyTorch's C module and Ebbtide keep the originals, which replacements build on.
        Undoing looks through the modules again, because one that was imported
        meanwhile may have taken the replacement.

        Args:
            replacements: pairs of the old object and the new one.

        Raises:
            ValueError: a new object stands for two old ones, which could not be told
                apart when they are put back.
        """
        if len({id(new) for _, new in replacements}) < len(replacements):
            raise ValueError("each object needs a replacement of its own")
        _swap_in_modules(replacements)
        backwards = [(new, old) for old, new in replacements]
        self._undo.append(lambda: _swap_in_modules(backwards))

    def on_undo(self, action: Callable[[], None]) -> None:
        """Call `action` when everything that was set after this has been put back."""
        self._undo.append(action)

    def undo(self) -> None:
        """Put everything back, the last replacement first.

        Every step is tried; the errors of those that failed are raised together.
        """
        errors: list[Exception] = []
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("some replacements could not be undone", errors)


def _own(owner: Any, name: str) -> Any:
    return vars(owner).get(name, _ABSENT)


def _swap_in_modules(pairs: list[tuple[Any, Any]]) -> None:
    wanted = {id(old): new for old, new in pairs}
    modules: list[Any] = list(sys.modules.values())  # anything may be in there
    for module in modules:
        if not isinstance(module, ModuleType) or module.__name__.startswith(_KEEP):
            continue
        names = vars(module)
        if wanted.keys().isdisjoint(map(id, list(names.values()))):
            continue  # most modules hold none; this way the look at each takes microseconds
        for name, value in list(names.items()):
            new = wanted.get(id(value))
            if new is not None:
                names[name] = new
