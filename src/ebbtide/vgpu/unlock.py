"""Make a PyTorch without a GPU accept `cuda` tensors that have no memory.

This module does that and nothing else. Where no GPU can be seen, two things
inside PyTorch stop fake `cuda` tensors from running forward, backward and
autocast:

1. c10's registry of device guards has no entry for CUDA, so copies and the
   autograd engine fail. PyTorch lets Python register a guard for the
   `PrivateUse1` device; its slot is copied to CUDA's.
2. The CUDA hooks say that no device exists. The hooks object is given a table
   of virtual functions in which the questions (`hasCUDA`, `deviceCount`, ...)
   are answered and everything else is as before.

The positions in the tables are read from the headers in the installed wheel,
so they follow the version. `lock()` puts both back. On a machine where PyTorch
sees a real GPU nothing is touched: fake `cuda` tensors work there as they are.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any

import torch

from ebbtide.errors import VirtualGpuError

# The versions on which the whole test suite has run.
KNOWN_VERSIONS = ("2.13.0 (CPU build)", "2.14.1 (CUDA build)")

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_CUDA_SLOT, _PRIVATEUSE1_SLOT = 1, 20  # c10::DeviceType, c10/core/DeviceType.h
_PREFIX = 2  # offset-to-top and type information lie before the table

# What the functions in the tables answer. Nearly all are asked while an exception is
# on its way through PyTorch, from destructors that must not throw, so no Python may
# run there: the answers are native functions that exist already. `Py_IsInitialized`
# is 1 as long as there is an interpreter; `hasROCM` is false in every CUDA or CPU build.
_YES = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
_ANSWERED_YES = (
    "hasCUDA",
    "isAvailable",
    "isBuilt",
    "hasPrimaryContext",
    "deviceCount",
    "getNumGPUs",
    # cuDNN answers as present so that PyTorch's own composite code picks the CUDA path.
    "hasCuDNN",
    "compiledWithCuDNN",
    "supportsDilatedConvolutionWithCuDNN",
    "supportsDepthwiseConvolutionWithCuDNN",
    "supportsBFloat16ConvolutionWithCuDNNv8",
    "supportsBFloat16RNNWithCuDNN",
)
_ANSWERED_ZERO = (
    "isPinnedPtr",
    "getCurrentDevice",
    "current_device",
    "exchangeDevice",
    "maybeExchangeDevice",
    "setCurrentDevice",
    "deviceSynchronize",
    "init",
)
_ZERO_NAME = "hasROCM"
# As a `DeviceType`, 1 is CUDA; as a `Device`, two bytes, it is the first CUDA device; as
# a `Stream` it is one of that device, and of a stream guard's exchange nobody looks at
# more than that. Python's own guard would run Python even when an exception unwinds.
_GUARD_ANSWERED_CUDA = ("type", "getDevice", "exchangeDevice", "exchangeStream")
# These have an answer of their own; they are asked seldom and outside destructors.
_LONG = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)
_DOUBLE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)
# cuDNN 9.10, which torch 2.8 and newer ship (RELEASE.md of pytorch/pytorch).
_CUDNN_VERSION = 91002
_CALLBACKS = {
    "versionCuDNN": _LONG(lambda _: _CUDNN_VERSION),
    "versionRuntimeCuDNN": _LONG(lambda _: _CUDNN_VERSION),
    "batchnormMinEpsilonCuDNN": _DOUBLE(lambda _: 1e-5),
}
_Word = ctypes.c_void_p


class _Guard(torch._C._acc.DeviceGuard):
    """The device guard that answers for CUDA."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.CUDA


class _Table:
    """A table of virtual functions with some entries replaced.

    Args:
        owner: address of the object whose table it is.
        length: entries, without the two words before them.
    """

    def __init__(self, owner: int, length: int) -> None:
        self._pointer = _Word.from_address(owner)
        if not self._pointer.value:
            raise _unsupported("an object has no table of functions")
        self._old = self._pointer.value
        size = ctypes.sizeof(_Word)
        old = (_Word * (length + _PREFIX)).from_address(self._old - _PREFIX * size)
        self._new = (_Word * (length + _PREFIX))(*old)
        self._address = ctypes.addressof(self._new) + _PREFIX * size

    def __getitem__(self, entry: int) -> int | None:
        return self._new[_PREFIX + entry]

    def __setitem__(self, entry: int, function: int | None) -> None:
        self._new[_PREFIX + entry] = function

    def use(self) -> None:
        """Make the object answer by this table."""
        self._pointer.value = self._address

    def put_back(self) -> None:
        """Make it answer by its own again."""
        self._pointer.value = self._old


class _State:
    """What must stay alive while the locks are open, and how to close them."""

    guard: _Guard | None = None
    guard_address: int | None = None
    guard_table: _Table | None = None
    hooks_table: _Table | None = None
    old_guard: int | None = None
    opened = False


def needed() -> bool:
    """Whether this process has no usable GPU, so that the locks matter."""
    driver_is_there = getattr(torch._C, "_cuda_isDriverSufficient", lambda: False)
    return not driver_is_there()


def virtual_functions(headers: Path) -> list[str]:
    """Names of the CUDA hooks' virtual functions in the order of their table.

    Args:
        headers: the folder `include` of a torch wheel.

    Raises:
        VirtualGpuError: the headers are missing or look unlike any known version.
    """
    base = _read(headers / "ATen" / "detail" / "AcceleratorHooksInterface.h")
    derived = _read(headers / "ATen" / "detail" / "CUDAHooksInterface.h")
    start = derived.find("struct TORCH_API CUDAHooksInterface")
    if start < 0:
        raise _unsupported("CUDAHooksInterface.h has no such structure")
    # The Itanium C++ ABI lays out two destructor entries where the destructor stands.
    names = ["~", "~", *_virtual_names(base), *_virtual_names(derived[start:])]
    needed_names = {*_ANSWERED_YES[:5], "getCurrentDevice", _ZERO_NAME}
    missing = sorted(needed_names.difference(names))
    if missing:
        raise _unsupported(f"its CUDA hooks have no {', '.join(missing)}")
    return names


def guard_functions(headers: Path) -> list[str]:
    """Names of a device guard's virtual functions in the order of their table.

    Raises:
        VirtualGpuError: as `virtual_functions`.
    """
    text = _read(headers / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h")
    start = text.find("DeviceGuardImplInterface {")
    end = text.find("\n};", start)
    names = _virtual_names(text[start:end])
    if start < 0 or not names or names[0] != "type":
        raise _unsupported("DeviceGuardImplInterface.h looks unlike any known one")
    return [*names, "~", "~"]


def _virtual_names(text: str) -> list[str]:
    text = re.sub(r"#ifdef USE_ROCM.*?#endif", "", text, flags=re.S)
    text = re.sub(r"//.*|virtual\s+~|/\*.*?\*/", "", text)
    return re.findall(r"^\s*virtual\s+[^;{}]*?(\w+)\s*\(", text, re.M)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise _unsupported(f"its headers cannot be read ({error})") from error


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
    if _State.opened or not needed():
        return
    root = Path(torch.__file__).parent
    try:
        torch_cpu = ctypes.CDLL(str(root / "lib" / "libtorch_cpu.so"))
        get_hooks = torch_cpu[_GET_HOOKS]
        registry = _registry()
    except (OSError, ValueError, AttributeError) as error:
        raise _unsupported(f"a symbol is missing ({error})") from error
    hooks = virtual_functions(root / "include")
    guard = guard_functions(root / "include")
    _start_autograd()
    get_hooks.restype, get_hooks.argtypes = ctypes.c_void_p, []
    _open_guard(registry, guard)
    _open_hooks(get_hooks(), hooks)
    _State.opened = True


def _start_autograd() -> None:
    """Have the autograd engine count the devices while there is none.

    At its first backward it starts a thread for each device, once, and from then on
    refuses to run in forks of the process. The virtual GPU's backward runs in the
    thread that calls it.
    """
    with torch.enable_grad():
        torch.ones((), requires_grad=True).backward()


def _registry() -> Any:
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return (_Word * (_PRIVATEUSE1_SLOT + 1)).in_dll(c10, _REGISTRY)


def _open_guard(registry: Any, names: list[str]) -> None:
    _State.old_guard = registry[_CUDA_SLOT]
    if _State.guard is None:
        _State.guard = _Guard()
        torch._C._acc.register_python_privateuseone_device_guard(_State.guard)
        _State.guard_address = registry[_PRIVATEUSE1_SLOT]
        if _State.guard_address is None:
            raise _unsupported("it registers no device guard")
        table = _Table(_State.guard_address, len(names))
        for name in _GUARD_ANSWERED_CUDA:
            table[names.index(name)] = _YES
        table.use()
        _State.guard_table = table
    registry[_CUDA_SLOT] = _State.guard_address


def _open_hooks(address: int, names: list[str]) -> None:
    table = _Table(address, len(names))
    zero = table[names.index(_ZERO_NAME)]
    answers: dict[str, int | None] = {
        **dict.fromkeys(_ANSWERED_YES, _YES),
        **dict.fromkeys(_ANSWERED_ZERO, zero),
    }
    for name, callback in _CALLBACKS.items():
        answers[name] = ctypes.cast(callback, _Word).value
    for name, function in answers.items():
        if name in names:
            table[names.index(name)] = function
    table.use()
    _State.hooks_table = table


def lock() -> None:
    """Close both locks: this process sees no CUDA device again.

    Fake `cuda` tensors that are still alive must not be used after this.
    """
    if not _State.opened or _State.hooks_table is None:
        return
    _State.hooks_table.put_back()
    _registry()[_CUDA_SLOT] = _State.old_guard
    _State.opened = False
