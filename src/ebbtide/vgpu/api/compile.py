"""`torch.compile` and TorchScript: taken as eager, and said so.

A compiler fuses operations and plans memory in ways that are not modelled; eager
is what it starts from, and an upper bound for most programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ebbtide.vgpu.api.surface import Surface
from ebbtide.vgpu.patches import PatchSet

COMPILED = "torch.compile was asked for: taken as eager, so memory and time are those of eager"
"""The guess that this is."""
_SCRIPT = "TorchScript was asked for: taken as eager"
_SCRIPTING = (torch.jit.script, torch.jit.freeze, torch.jit.optimize_for_inference)


class OptimizedModule(torch.nn.Module):
    """What `torch.compile(module)` returns, without a compiler.

    As in PyTorch, the module is the child ``_orig_mod`` (so state dictionaries have
    that prefix) and everything else is asked of it.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self._orig_mod(*args, **kwargs)

    @property
    def training(self) -> bool:
        """That of the module."""
        return bool(self._orig_mod.training)

    @training.setter
    def training(self, value: bool) -> None:
        module = self.__dict__.get("_modules", {}).get("_orig_mod")
        if module is not None:
            module.training = value

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__["_modules"]
        if name in modules:
            return modules[name]
        return getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training" or "_orig_mod" not in self.__dict__.get("_modules", {}):
            super().__setattr__(name, value)
        else:
            setattr(self._modules["_orig_mod"], name, value)

    def __len__(self) -> int:
        return len(self._modules["_orig_mod"])  # type: ignore[arg-type]


def _compile(vgpu: Surface) -> Callable[..., Any]:
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return compile
        vgpu.guess("compile", COMPILED)
        return OptimizedModule(model) if isinstance(model, torch.nn.Module) else model

    return compile


def _module_compile(vgpu: Surface) -> Callable[..., None]:
    def compile(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        vgpu.guess("compile", COMPILED)

    return compile


def _script(vgpu: Surface, original: Callable[..., Any]) -> Callable[..., Any]:
    def script(obj: Any, *args: Any, **options: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return original(obj, *args, **options)  # PyTorch scripts some of its own formulae
        if isinstance(obj, torch.nn.Module):
            vgpu.guess("script", _SCRIPT)
        return obj

    return script


def _trace(vgpu: Surface) -> Callable[..., Any]:
    def trace(func: Any, example_inputs: Any = None, *args: Any, **options: Any) -> Any:
        vgpu.guess("script", _SCRIPT)
        return func

    return trace


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Replace the compilers by their inputs."""
    patches.everywhere(
        [
            (torch.compile, _compile(vgpu)),
            (torch.jit.trace, _trace(vgpu)),
            *((function, _script(vgpu, function)) for function in _SCRIPTING),
        ]
    )
    patches.set(torch.nn.Module, "compile", _module_compile(vgpu))
    # Resetting the compiler imports Inductor's module of CUDA graphs, which asks for these
    # where CUDA is there; a CPU build has none.
    for name in ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled"):
        if not hasattr(torch._C, name):
            patches.set(torch._C, name, lambda *_args: None)
