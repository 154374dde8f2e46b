"""In a program that ``ebbtide run`` started: train under the plan from the import of torch on.

This module imports no torch: a program may not use it, or only after it has forked.
"""

from __future__ import annotations

import atexit
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def plan_when_torch_is_there(path: str) -> None:
    """Enter the plan in the file at `path` as soon as this process has imported torch."""
    sys.meta_path.insert(0, _Finder(path))


class _Finder(MetaPathFinder):
    """Finds torch as the others do, and has it followed by the plan."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch; of nothing else."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, self._path)
        return spec


class _Followed(Loader):
    """Loads a module, and then enters the plan."""

    def __init__(self, loader: Loader, path: str) -> None:
        self._loader, self._path = loader, path

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, and then the plan."""
        self._loader.exec_module(module)
        _enter(self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _enter(path: str) -> None:
    from ebbtide.fitting.plan import Plan
    from ebbtide.train.carry_out import carried_out

    context = carried_out(Plan.load(path).decision)
    context.__enter__()
    atexit.register(context.__exit__, None, None, None)
