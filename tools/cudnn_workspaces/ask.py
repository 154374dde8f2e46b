"""Ask cuDNN, without a GPU, what workspaces it would take: `ask.py LAYERS.json OUT.jsonl`.

Uses cuDNN's documented backend API alone: operation graphs, engine heuristics, and a device
described by JSON (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, since 9.8). Numbers of attributes and
types are those of cudnn_graph_v9.h.
"""

from __future__ import annotations

import ctypes
import json
import math
import random
import sys
from typing import Any

# Public figures of each GPU (NVIDIA's data sheets, CUDA programming guide, 2026-11).
_SHARED = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxThreadsPerBlock": 1024,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "cudaDeviceId": 0,
    "driverVer": 12040,
}
_FIELDS = (
    "deviceName deviceVer multiProcessorCount smClockRateKHz memClockRateKHz memoryBusWidth "
    "l2CacheSize maxSharedMemoryPerBlockOptin maxCtasPerSM maxThreadsPerSM totalGlobalMem "
    "pciDeviceId"
).split()
_GiB = 1 << 30
GPUS: dict[str, tuple[Any, ...]] = {
    "7.0": ("Tesla V100-SXM2-16GB", 700, 80, 1530000, 877000, 4096, 6 << 20, 98304, 32, 2048,
            16 * _GiB, 0x1DB1),
    "7.5": ("Tesla T4", 750, 40, 1590000, 5001000, 256, 4 << 20, 65536, 16, 1024,
            15 * _GiB, 0x1EB8),
    "8.0": ("NVIDIA A100-SXM4-40GB", 800, 108, 1410000, 1215000, 5120, 40 << 20, 166912, 32,
            2048, 40 * _GiB, 0x20B0),
    "8.6": ("NVIDIA GeForce RTX 3060", 860, 28, 1777000, 7501000, 192, 9 << 18, 101376, 16,
            1536, 12 * _GiB, 0x2503),
    "8.9": ("NVIDIA L4", 890, 58, 2040000, 6251000, 192, 48 << 20, 101376, 24, 1536,
            22 * _GiB, 0x27B8),
    "9.0": ("NVIDIA H100 80GB HBM3", 900, 132, 1980000, 2619000, 5120, 50 << 20, 232448, 32,
            2048, 80 * _GiB, 0x2330),
    "10.0": ("NVIDIA B200", 1000, 148, 1965000, 3996000, 8192, 253 << 19, 232448, 32, 2048,
             180 * _GiB, 0x2901),
    "12.0": ("NVIDIA GeForce RTX 5090", 1200, 170, 2407000, 14001000, 512, 96 << 20, 101376,
             24, 1536, 32 * _GiB, 0x2B85),
}  # fmt: skip
SINCE_9_20 = ("9.0", "10.0", "12.0")  # cuDNN 9.8 faults when it is asked about these
WORKLOADS = (("float32", "nchw"), ("float16", "nchw"), ("float16", "nhwc"))
CHANNELS_LAST_FLOAT32 = ("8.0", "8.6", "9.0")
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 300, 384, 512, 768, 1024)
LARGEST_ELEMENTS = 1.5e9
DRAWS, SEED = 2500, 11

_OPERATION = {"fwd": (10, 700), "dgrad": (12, 706), "wgrad": (11, 712)}  # type, first attribute
_DTYPE = {"float32": 0, "float16": 2}
_INT64, _FLOAT, _DESCRIPTOR, _CHAR = 3, 4, 15, 24
_TENSOR_CORE = 0  # CUDNN_NUMERICAL_NOTE_TENSOR_CORE


class Cudnn:
    """The few calls of the backend API that heuristics need."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcudnn.so.9", mode=ctypes.RTLD_GLOBAL)
        self.version: int = self.lib.cudnnGetVersion()
        pointer, number = ctypes.c_void_p, ctypes.c_int
        set_types: list[Any] = [pointer, number, number, ctypes.c_int64, pointer]
        self.lib.cudnnBackendSetAttribute.argtypes = set_types
        self.lib.cudnnBackendGetAttribute.argtypes = [*set_types, pointer]
        self.lib.cudnnBackendFinalize.argtypes = [pointer]
        self.lib.cudnnBackendDestroyDescriptor.argtypes = [pointer]
        self.made: list[ctypes.c_void_p] = []

    def new(self, kind: int) -> ctypes.c_void_p:
        """An empty descriptor, destroyed by `clear`."""
        made = ctypes.c_void_p()
        _check(self.lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)))
        self.made.append(made)
        return made

    def clear(self, keep: int) -> None:
        """Destroy all descriptors but the first `keep`."""
        while len(self.made) > keep:
            self.lib.cudnnBackendDestroyDescriptor(self.made.pop())

    def put(self, on: Any, attribute: int, kind: int, *values: Any) -> None:
        """Set an attribute; `kind` is one of cudnnBackendAttributeType_t."""
        array: Any
        if kind == _DESCRIPTOR:
            array = (ctypes.c_void_p * len(values))(*(value.value for value in values))
        elif kind == _FLOAT:
            array = (ctypes.c_float * len(values))(*values)
        elif kind == _INT64:
            array = (ctypes.c_int64 * len(values))(*values)
        else:
            array = (ctypes.c_int * len(values))(*values)
        _check(self.lib.cudnnBackendSetAttribute(on, attribute, kind, len(values), array))

    def get(self, of: Any, attribute: int, kind: int, array: Any) -> int:
        """Read an attribute into `array`; how many elements there are."""
        count = ctypes.c_int64()
        args = (of, attribute, kind, len(array), ctypes.byref(count), array)
        _check(self.lib.cudnnBackendGetAttribute(*args))
        return count.value

    def finish(self, descriptor: Any) -> Any:
        """Finalize a descriptor and return it."""
        _check(self.lib.cudnnBackendFinalize(descriptor))
        return descriptor

    def device(self, arch: str) -> Any:
        """The description of a GPU that is not there."""
        text = json.dumps(_SHARED | dict(zip(_FIELDS, GPUS[arch], strict=True))).encode()
        made = self.new(38)
        _check(self.lib.cudnnBackendSetAttribute(made, 2702, _CHAR, len(text), text))
        return self.finish(made)

    def tensor(self, shape: list[int], dtype: str, layout: str, number: int) -> Any:
        """A tensor as PyTorch's getTensorDescriptor makes it."""
        made = self.new(17)
        self.put(made, 901, 1, _DTYPE[dtype])
        self.put(made, 902, _INT64, *shape)
        self.put(made, 903, _INT64, *strides(shape, layout))
        self.put(made, 906, _INT64, number)
        self.put(made, 900, _INT64, 32)
        return self.finish(made)

    def engines(
        self, direction: str, x: list[int], layer: list[Any], dtype: str, layout: str, device: Any
    ) -> list[Any]:
        """Engine configurations in cuDNN's order (instant heuristics), ten at most."""
        _, w, stride, padding, dilation, _ = layer
        conv = self.new(1)
        self.put(conv, 100, 1, 0)
        self.put(conv, 101, 7, 1)
        lists = ((102, dilation), (103, stride), (104, padding), (105, padding), (106, [2]))
        for attribute, values in lists:
            self.put(conv, attribute, _INT64, *values)
        kind, first = _OPERATION[direction]
        operation = self.new(kind)
        self.put(operation, first, _FLOAT, 1.0)
        self.put(operation, first + 1, _FLOAT, 0.0)
        self.put(operation, first + 2, _DESCRIPTOR, self.finish(conv))
        for attribute, shape, number in ((3, w, 2), (4, x, 1), (5, output_of(x, layer), 3)):
            made = self.tensor(shape, dtype, layout, number)
            self.put(operation, first + attribute, _DESCRIPTOR, made)
        graph = self.new(15)
        self.put(graph, 801, _DESCRIPTOR, self.finish(operation))
        heuristics = self.new(4)
        self.put(heuristics, 201, _DESCRIPTOR, self.finish(graph))
        self.put(heuristics, 200, 8, 0)
        self.put(heuristics, 204, _DESCRIPTOR, device)
        self.finish(heuristics)
        configurations = [self.new(3) for _ in range(10)]
        array = (ctypes.c_void_p * 10)(*(c.value for c in configurations))
        return configurations[: self.get(heuristics, 202, _DESCRIPTOR, array)]

    def describe(self, configuration: Any) -> tuple[int, int, bool]:
        """Number of the engine, bytes of its workspace, and whether it uses tensor cores."""
        size, index, notes = (ctypes.c_int64 * 1)(), (ctypes.c_int64 * 1)(), (ctypes.c_int * 16)()
        self.get(configuration, 303, _INT64, size)
        engine = self.new(2)
        self.get(configuration, 300, _DESCRIPTOR, (ctypes.c_void_p * 1)(engine.value))
        self.get(engine, 1301, _INT64, index)
        count = self.get(engine, 1303, 11, notes)
        return index[0], size[0], _TENSOR_CORE in notes[:count]


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuDNN status {status}")


def strides(shape: list[int], layout: str) -> list[int]:
    """Strides of a dense tensor in elements."""
    order = (3, 2, 1, 0) if layout == "nchw" else (1, 3, 2, 0)
    found, step = [0] * 4, 1
    for dim in order:
        found[dim] = step
        step *= shape[dim]
    return found


def output_of(x: list[int], layer: list[Any]) -> list[int]:
    """Shape of the output."""
    _, w, stride, padding, dilation, _ = layer
    spatial = [
        (x[d + 2] + 2 * padding[d] - dilation[d] * (w[d + 2] - 1) - 1) // stride[d] + 1
        for d in (0, 1)
    ]
    return [x[0], w[0], *spatial]


def answer(cudnn: Cudnn, device: Any, direction: str, x: list[int], layer: list[Any],
           dtype: str, layout: str) -> list[Any]:  # fmt: skip
    """The first engine, and in float32 the first that does without tensor cores."""
    first: list[int] | None = None
    plain: list[int] | None = None
    for configuration in cudnn.engines(direction, x, layer, dtype, layout, device):
        index, size, tensor_cores = cudnn.describe(configuration)
        first = first or [index, size]
        if not tensor_cores:
            plain = [index, size]
        if plain or dtype != "float32":
            break
    return [first, plain]


def main(layers: str, out: str) -> None:
    """Ask about `DRAWS` layers, each with a random batch, on every GPU."""
    cudnn = Cudnn()
    known = cudnn.version >= 91100
    devices = {arch: cudnn.device(arch) for arch in GPUS if known or arch not in SINCE_9_20}
    keep = len(cudnn.made)
    with open(layers, encoding="utf-8") as file:
        choices = json.load(file)
    draw = random.Random(SEED)
    with open(out, "w", encoding="utf-8") as file:
        for _ in range(DRAWS):
            layer, x = choices[0], [0]
            while not 0 < math.prod(x) < LARGEST_ELEMENTS:
                layer = draw.choice(choices)
                x = [draw.choice(BATCHES), *layer[0]]
                if math.prod(output_of(x, layer)) >= LARGEST_ELEMENTS:
                    x = [0]
            for arch, device in devices.items():
                last = (("float32", "nhwc"),) if arch in CHANNELS_LAST_FLOAT32 else ()
                for dtype, layout in WORKLOADS + last:
                    for direction in _OPERATION:
                        found = answer(cudnn, device, direction, x, layer, dtype, layout)
                        row = [arch, dtype, layout, direction, x, layer, *found]
                        file.write(json.dumps(row) + "\n")
                        cudnn.clear(keep)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
