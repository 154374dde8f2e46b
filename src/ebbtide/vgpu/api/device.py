"""Which GPU there is: `torch.cuda`'s, `torch.backends`' and `torch.accelerator`'s queries.

PyTorch's Python code is kept. What is replaced is the layer of C functions
below it (`torch._C._cuda_*`), which a build without CUDA lacks, so that names
taken earlier (``from torch.cuda import is_available``) give the same answers.
"""

from __future__ import annotations

import importlib
import os
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.api.surface import Surface, capability_of
from ebbtide.vgpu.mode import INVALID_DEVICE
from ebbtide.vgpu.patches import PatchSet

# CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability":
# resident threads of a multiprocessor, shared memory of a multiprocessor (KiB).
_LIMITS: dict[tuple[int, int], tuple[int, int]] = {
    (7, 0): (2048, 96),
    (7, 5): (1024, 64),
    (8, 0): (2048, 164),
    (8, 6): (1536, 100),
    (8, 7): (1536, 164),
    (8, 9): (1536, 100),
    (9, 0): (2048, 228),
    (10, 0): (2048, 228),
    (10, 3): (2048, 228),
    (11, 0): (1536, 228),
    (12, 0): (1536, 100),
    (12, 1): (1536, 100),
}
_KIB = 1024
# The architectures of PyTorch's CUDA 13.0 wheels (PYTORCH_RELEASES_CODE_CC in
# torch/cuda/__init__.py of 2.13); GPUs that those lack run on the 12.6 wheels.
_WHEEL_SMS = (75, 80, 86, 90, 100, 120)
_OLD_WHEEL_SMS = (50, 60, 70, 75, 80, 86, 90)
# cuDNN of PyTorch's CUDA 13.0 and 12.6 wheels (RELEASE.md of pytorch/pytorch).
_CUDNN_VERSION = 91002
# cudnnRNNMode_t, which a build without cuDNN lacks.
_CUDNN_BINDINGS = SimpleNamespace(RNNMode=SimpleNamespace(rnn_relu=0, rnn_tanh=1, lstm=2, gru=3))


def _shared_optin(capability: tuple[int, int], per_sm: int) -> int:
    """Largest shared memory of one block: 1 KiB is the system's from 8.0 on (same table)."""
    return (per_sm - 1) * _KIB if capability >= (8, 0) else per_sm * _KIB


@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns, with the names of the real object."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    shared_memory_per_block: int = 48 * _KIB
    regs_per_multiprocessor: int = 65536
    warp_size: int = 32
    max_threads_per_block: int = 1024
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""
    pci_bus_id: int = 1
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: uuid.UUID = field(default_factory=lambda: uuid.UUID(int=0))

    def __repr__(self) -> str:
        mib = _KIB * _KIB
        return (
            f"_CudaDeviceProperties(name={self.name!r}, major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // mib}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // mib}MB)"
        )


def properties_of(vgpu: Surface) -> DeviceProperties:
    """The properties object of the virtual GPU."""
    spec = vgpu.spec
    capability = capability_of(vgpu)
    known = [limit for limit in _LIMITS if limit <= capability]
    threads, shared = _LIMITS[max(known, default=(7, 0))]
    return DeviceProperties(
        name=spec.name,
        major=capability[0],
        minor=capability[1],
        total_memory=spec.usable_bytes,
        multi_processor_count=spec.sm_count,
        L2_cache_size=spec.l2_bytes,
        max_threads_per_multi_processor=threads,
        shared_memory_per_multiprocessor=shared * _KIB,
        shared_memory_per_block_optin=_shared_optin(capability, shared),
        uuid=uuid.uuid5(uuid.NAMESPACE_DNS, f"ebbtide/{spec.name}"),
    )


def _arch_flags(capability: tuple[int, int]) -> str:
    sm = 10 * capability[0] + capability[1]
    known = set(_WHEEL_SMS if sm >= 75 else _OLD_WHEEL_SMS)
    # Binary code of one minor version runs on the later ones of its major version.
    if not any(code // 10 == sm // 10 and code <= sm for code in known):
        known.add(sm)
    return " ".join(f"sm_{code}" for code in sorted(known))


def _check(index: int) -> int:
    if index not in (0, -1):
        raise torch.AcceleratorError(INVALID_DEVICE.format(index=index))
    return 0


def _exchange(index: int) -> int:
    """Negative means "leave it", and so is the answer (torch/csrc/cuda/Module.cpp)."""
    return -1 if index < 0 else _check(index)


class _SyncDebug:
    mode = 0

    def set(self, mode: int) -> None:
        self.mode = mode

    def get(self) -> int:
        return self.mode


def _core(vgpu: Surface) -> dict[str, Any]:
    capability = capability_of(vgpu)
    home = os.getpid()
    debug = _SyncDebug()
    handle = 0x7F00_0000_0000  # an opaque pointer; nothing lies behind it
    return {
        "_cuda_init": lambda: None,
        "_cuda_isInBadFork": lambda: os.getpid() != home,
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": _check,
        "_cuda_exchangeDevice": _exchange,
        "_cuda_maybeExchangeDevice": _exchange,
        "_cuda_hasPrimaryContext": lambda index: index == 0,
        "_cuda_canDeviceAccessPeer": lambda a, b: False,
        "_cuda_getArchFlags": lambda: _arch_flags(capability),
        "_cuda_getCompiledVersion": lambda: 13000 if capability >= (7, 5) else 12060,
        "_cuda_synchronize": lambda: vgpu.clock.synchronize(),
        "_cuda_ipc_collect": lambda: None,
        "_cuda_sleep": lambda cycles: None,
        "_cuda_set_sync_debug_mode": debug.set,
        "_cuda_get_sync_debug_mode": debug.get,
        "_cuda_getCurrentBlasHandle": lambda: handle,
        "_cuda_getCurrentSolverHandle": lambda: handle,
        "_cuda_get_conv_benchmark_empty_cache": lambda: False,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_record_untuned_is_enabled": lambda: False,
    }


def _cudnn() -> dict[str, Any]:
    limit = SimpleNamespace(value=10)  # PyTorch's default, ATen/Context.h
    return {
        "_has_cuda": True,
        "_has_cudnn": True,
        "_cuda_get_cudnn_benchmark_limit": lambda: limit.value,
        "_cuda_set_cudnn_benchmark_limit": lambda value: setattr(limit, "value", value),
    }


def _accelerator(vgpu: Surface) -> dict[str, Any]:
    return {
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": _check,
        "_accelerator_exchangeDevice": _exchange,
        "_accelerator_maybeExchangeDevice": _exchange,
        "_accelerator_synchronizeDevice": lambda index: vgpu.clock.synchronize(),
        "_accelerator_getDeviceCapability": lambda index: {
            "supported_dtypes": {
                torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                torch.float16, torch.bfloat16, torch.float32, torch.float64,
                torch.complex64, torch.complex128,
            }
        },
    }  # fmt: skip


_REFUSED = {
    "_cuda_jiterator_compile_and_launch_kernel": "torch.cuda.jiterator",
    "_cuda_tunableop_enable": "torch.cuda.tunable",
    "_cuda_tunableop_tuning_enable": "torch.cuda.tunable",
    "_cuda_record_untuned_enable": "torch.cuda.tunable",
    "_nccl_all_reduce": "torch.cuda.nccl",
    "_nccl_broadcast": "torch.cuda.nccl",
    "_nccl_init_rank": "torch.cuda.nccl",
}


def _refuse(what: str) -> Any:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise VirtualGpuError(
            f"{what} needs a real GPU: it compiles, measures or connects kernels, which the "
            "virtual GPU does not run. Leave it out of the run that is predicted."
        )

    return refused


class Runtime:
    """Stands in for the CUDA runtime module that `torch.cuda.cudart()` returns."""

    class cudaError:
        """Error codes; calling it gives back the code, as the real enumeration does."""

        success = 0

        def __new__(cls, code: int = 0) -> Any:
            """The code as it is."""
            return code

    class cudaOutputMode:
        """Profiler output formats."""

        KeyValuePair, CSV = 0, 1

    def __init__(self, vgpu: Surface) -> None:
        self._vgpu = vgpu

    def cudaGetErrorString(self, code: int) -> str:
        """Text of an error code."""
        return "no error" if code == 0 else f"CUDA error {code}"

    def cudaMemGetInfo(self, device: int = 0) -> tuple[int, int]:
        """Free and total bytes."""
        _check(device)
        return free_and_total(self._vgpu)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *args: 0


def free_and_total(vgpu: Surface) -> tuple[int, int]:
    """What `cudaMemGetInfo` says: bytes that nobody has taken, and all that are usable."""
    return vgpu.memory.free_bytes(), vgpu.spec.usable_bytes


class _Ranges:
    """NVTX ranges: only their depth can be asked."""

    def __init__(self) -> None:
        self.depth = 0

    def rangePushA(self, message: str) -> int:
        self.depth += 1
        return self.depth - 1

    def rangePop(self) -> int:
        self.depth -= 1
        return self.depth

    def rangeStartA(self, message: str) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args: None


def _sensor(vgpu: Surface, name: str) -> Any:
    def read(device: Any = None) -> int:
        vgpu.guess("sensor", f"torch.cuda.{name}() was read: the virtual GPU answers 0")
        return 0

    return read


def _state(vgpu: Surface) -> dict[str, Any]:
    """Values that PyTorch keeps in `torch.cuda` itself."""
    values: dict[str, Any] = {
        "_initialized": True,
        "_cached_device_count": 1,
        "_cudart": Runtime(vgpu),
        "_is_in_bad_fork": vars(torch._C)["_cuda_isInBadFork"],
        "_exchange_device": _exchange,
        "_maybe_exchange_device": _exchange,
        "_get_device_properties": lambda index: properties_of(vgpu),
        "device_memory_used": lambda device=None: vgpu.spec.usable_bytes - free_and_total(vgpu)[0],
    }
    for name in ("memory_usage", "utilization", "temperature", "power_draw", "clock_rate"):
        values[name] = _sensor(vgpu, name)
    return values


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Make PyTorch see the virtual GPU."""
    c = torch._C
    patches.set_all(c, _core(vgpu) | _cudnn() | _accelerator(vgpu))
    patches.set_all(c, {name: _refuse(what) for name, what in _REFUSED.items()})
    patches.set_all(torch.cuda, _state(vgpu))
    patches.set(torch.cuda.nvtx, "_nvtx", _Ranges())
    if torch.version.cuda is None:
        new = capability_of(vgpu) >= (7, 5)
        patches.set(torch.version, "cuda", "13.0" if new else "12.6")
    # The module behind the one that Python sees: its own functions ask it.
    cudnn = vars(torch.backends.cudnn)["m"]  # the module behind a property holder
    patches.set(cudnn, "version", lambda: _CUDNN_VERSION)
    patches.set(cudnn, "_init", lambda: True)
    patches.set(importlib.import_module("torch.backends.cudnn.rnn").m, "_cudnn", _CUDNN_BINDINGS)
