"""Make a PyTorch without a GPU accept `cuda` tensors that have no memory.

This module does that and nothing else. Where no GPU can be seen, two things
inside PyTorch stop fake `cuda` tensors from running forward, backward and
autocast:

1. c10's registry of device guards has no entry for CUDA, so copies and the
   autograd engine fail. PyTorch lets Python register a guard for the
   `PrivateUse1` device; its slot is copied to CUDA's.
2. The CUDA hooks say that no device exists. The hooks object is given a table
   of virtual functions in which the questions (`hasCUDA`, `deviceCount`, ...)
   are answered by callbacks and everything else is as before.

The positions in that table are read from the headers in the installed wheel,
so they follow the version. `lock()` puts both back. On a machine where PyTorch
sees a real GPU nothing is touched: fake `cuda` tensors work there as they are.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ebbtide.errors import VirtualGpuError

# The versions on which the whole test suite has run.
KNOWN_VERSIONS = ("2.13.0 (CPU build)", "2.14.1 (CUDA build)")

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_CUDA_SLOT, _PRIVATEUSE1_SLOT = 1, 20  # c10::DeviceType, c10/core/DeviceType.h
_DESTRUCTORS = 2  # the Itanium C++ ABI lays out two destructor entries first
_PREFIX = 2  # offset-to-top and type information lie before the table

_This = ctypes.c_void_p
_BOOL = ctypes.CFUNCTYPE(ctypes.c_bool, _This)
_BOOL_INDEX = ctypes.CFUNCTYPE(ctypes.c_bool, _This, ctypes.c_int8)
_BOOL_POINTER = ctypes.CFUNCTYPE(ctypes.c_bool, _This, ctypes.c_void_p)
_INDEX = ctypes.CFUNCTYPE(ctypes.c_int8, _This)
_INDEX_INDEX = ctypes.CFUNCTYPE(ctypes.c_int8, _This, ctypes.c_int8)
_INT = ctypes.CFUNCTYPE(ctypes.c_int, _This)
_LONG = ctypes.CFUNCTYPE(ctypes.c_long, _This)
_DOUBLE = ctypes.CFUNCTYPE(ctypes.c_double, _This)
_NOTHING = ctypes.CFUNCTYPE(None, _This)
_NOTHING_INDEX = ctypes.CFUNCTYPE(None, _This, ctypes.c_int8)


def _yes(*_: Any) -> bool:
    return True


def _no(*_: Any) -> bool:
    return False


def _zero(*_: Any) -> int:
    return 0


def _one(*_: Any) -> int:
    return 1


def _nothing(*_: Any) -> None:
    return None


# name of the virtual function -> callback. One device, the first. cuDNN answers
# as present so that PyTorch's own composite code picks the CUDA path.
_ANSWERS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "hasCUDA": (_BOOL, _yes),
    "isAvailable": (_BOOL, _yes),
    "isBuilt": (_BOOL, _yes),
    "hasCuDNN": (_BOOL, _yes),
    "compiledWithCuDNN": (_BOOL, _yes),
    "supportsDilatedConvolutionWithCuDNN": (_BOOL, _yes),
    "supportsDepthwiseConvolutionWithCuDNN": (_BOOL, _yes),
    "supportsBFloat16ConvolutionWithCuDNNv8": (_BOOL, _yes),
    "supportsBFloat16RNNWithCuDNN": (_BOOL, _yes),
    "hasPrimaryContext": (_BOOL_INDEX, _yes),
    "isPinnedPtr": (_BOOL_POINTER, _no),
    "deviceCount": (_INDEX, _one),
    "getNumGPUs": (_INT, _one),
    "getCurrentDevice": (_INDEX, _zero),
    "current_device": (_INDEX, _zero),
    "exchangeDevice": (_INDEX_INDEX, _zero),
    "maybeExchangeDevice": (_INDEX_INDEX, _zero),
    "setCurrentDevice": (_NOTHING_INDEX, _nothing),
    "deviceSynchronize": (_NOTHING_INDEX, _nothing),
    "init": (_NOTHING, _nothing),
    # cuDNN 9.10, which torch 2.8 and newer ship (RELEASE.md of pytorch/pytorch).
    "versionCuDNN": (_LONG, lambda _: 91002),
    "versionRuntimeCuDNN": (_LONG, lambda _: 91002),
    "batchnormMinEpsilonCuDNN": (_DOUBLE, lambda _: 1e-5),
}
_REQUIRED = ("hasCUDA", "isAvailable", "hasPrimaryContext", "deviceCount", "getCurrentDevice")


class _Guard(torch._C._acc.DeviceGuard):
    """The device guard that answers for CUDA."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.CUDA


class _State:
    """What must stay alive while the locks are open, and how to close them."""

    guard: _Guard | None = None
    table: Any = None
    callbacks: list[Any] = []  # noqa: RUF012 - one process, one state
    hooks_address: int = 0
    old_table: int = 0
    old_guard: int | None = None


def needed() -> bool:
    """Whether this process has no usable GPU, so that the locks matter."""
    return not torch._C._cuda_isDriverSufficient() if _has_cuda_build() else True


def _has_cuda_build() -> bool:
    return hasattr(torch._C, "_cuda_isDriverSufficient")


def virtual_functions(headers: Path) -> list[str]:
    """Names of the hooks' virtual functions in the order of their table.

    Args:
        headers: the folder `include/ATen/detail` of a torch wheel.

    Raises:
        VirtualGpuError: the headers are missing or look unlike any known version.
    """
    try:
        base = (headers / "AcceleratorHooksInterface.h").read_text()
        derived = (headers / "CUDAHooksInterface.h").read_text()
    except OSError as error:
        raise _unsupported(f"its headers cannot be read ({error})") from error
    start = derived.find("struct TORCH_API CUDAHooksInterface")
    if start < 0:
        raise _unsupported("CUDAHooksInterface.h has no such structure")
    names: list[str] = []
    for text in (base, derived[start:]):
        text = re.sub(r"#ifdef USE_ROCM.*?#endif", "", text, flags=re.S)
        text = re.sub(r"//.*|virtual\s+~", "", text)
        names += re.findall(r"^\s*virtual\s+[^;{}]*?(\w+)\s*\(", text, re.M)
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise _unsupported(f"its CUDA hooks have no {', '.join(missing)}")
    return names


def _unsupported(reason: str) -> VirtualGpuError:
    return VirtualGpuError(
        f"The virtual GPU cannot work with torch {torch.__version__} on "
        f"{sys.platform}: {reason}. It is known to work on Linux with torch "
        f"{' and '.join(KNOWN_VERSIONS)}; install one of those, or use a machine with a GPU."
    )


def unlock() -> None:
    """Open both locks. Does nothing where a GPU is present or they are open already.

    Raises:
        VirtualGpuError: this torch is not one whose internals are known.
    """
    if _State.table is not None or not needed():
        return
    library = Path(torch.__file__).parent / "lib"
    try:
        c10 = ctypes.CDLL(str(library / "libc10.so"))
        torch_cpu = ctypes.CDLL(str(library / "libtorch_cpu.so"))
        registry = (ctypes.c_void_p * (_PRIVATEUSE1_SLOT + 1)).in_dll(c10, _REGISTRY)
        get_hooks = torch_cpu[_GET_HOOKS]
    except (OSError, ValueError, AttributeError) as error:
        raise _unsupported(f"a symbol is missing ({error})") from error
    names = virtual_functions(Path(torch.__file__).parent / "include" / "ATen" / "detail")
    get_hooks.restype, get_hooks.argtypes = ctypes.c_void_p, []
    _open_guard(registry)
    _open_hooks(get_hooks(), names)


def _open_guard(registry: Any) -> None:
    _State.old_guard = registry[_CUDA_SLOT]
    if _State.guard is None:
        _State.guard = _Guard()
        torch._C._acc.register_python_privateuseone_device_guard(_State.guard)
        _State.callbacks.append(registry[_PRIVATEUSE1_SLOT])
    registry[_CUDA_SLOT] = _State.callbacks[0]


def _open_hooks(hooks_address: int, names: list[str]) -> None:
    length = _PREFIX + _DESTRUCTORS + len(names)
    pointer = ctypes.c_void_p.from_address(hooks_address)
    if pointer.value is None:
        raise _unsupported("its CUDA hooks have no table of functions")
    word = ctypes.sizeof(ctypes.c_void_p)
    old = (ctypes.c_void_p * length).from_address(pointer.value - _PREFIX * word)
    table = (ctypes.c_void_p * length)(*old)
    for name, (prototype, answer) in _ANSWERS.items():
        if name in names:
            callback = prototype(answer)
            _State.callbacks.append(callback)
            entry = _PREFIX + _DESTRUCTORS + names.index(name)
            table[entry] = ctypes.cast(callback, ctypes.c_void_p).value
    _State.table, _State.hooks_address, _State.old_table = table, hooks_address, pointer.value
    pointer.value = ctypes.addressof(table) + _PREFIX * word


def lock() -> None:
    """Close both locks: this process sees no CUDA device again."""
    if _State.table is None:
        return
    ctypes.c_void_p.from_address(_State.hooks_address).value = _State.old_table
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * (_PRIVATEUSE1_SLOT + 1)).in_dll(c10, _REGISTRY)
    registry[_CUDA_SLOT] = _State.old_guard
    # The callbacks stay alive: an autograd thread may still be inside one.
    _State.table = None
