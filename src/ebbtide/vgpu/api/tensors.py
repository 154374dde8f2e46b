"""What Python asks of a tensor besides operations: printing, NumPy, addresses, `.data`.

Methods are put on `FakeTensor`, so that real tensors keep PyTorch's own. The
exceptions are pinned memory and `.data = ...`, which start from a real one.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ebbtide.vgpu.api.surface import CUDA, Surface, active, faked
from ebbtide.vgpu.patches import PatchSet

_MOST_PRINTED = 1000  # elements; PyTorch itself summarises beyond
_NO_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
    "host memory first."
)
_NEEDS_DETACH = (
    "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
)
_DATA: Any = torch._C.TensorBase.data
_BASE_DATA_PTR = torch.UntypedStorage.data_ptr
_BASE_RESIZE: Any = torch.UntypedStorage.resize_
_ADDRESS_SHIFT = 5  # a storage's own address is a multiple of 16; CUDA's are of 512


def address_of(storage: torch.UntypedStorage) -> int:
    """A stable address of fake memory: unique among live storages, a multiple of 512.

    Nothing lies there. An empty storage has none, like PyTorch's.
    """
    return storage._cdata << _ADDRESS_SHIFT if storage.nbytes() else 0


def _storage_data_ptr(storage: torch.UntypedStorage) -> int:
    if storage.device.type == "meta":
        return address_of(storage)
    address: int = _BASE_DATA_PTR(storage)
    return address


def _resize_storage(vgpu: Surface) -> Callable[..., torch.UntypedStorage]:
    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        _BASE_RESIZE(self, size)
        if self.device.type == "meta":
            vgpu.mode.storages.resized(self)
        return self

    return resize_


def _data_ptr(tensor: FakeTensor) -> int:
    base = address_of(tensor.untyped_storage())
    return base + int(tensor.storage_offset()) * tensor.element_size() if base else 0


# -- reading values


def _to_numpy(vgpu: Surface) -> Callable[..., Any]:
    def numpy(self: FakeTensor, *, force: bool = False) -> Any:
        if not force:
            if self.fake_device.type == "cuda":
                raise TypeError(_NO_NUMPY)
            if self.requires_grad:
                raise RuntimeError(_NEEDS_DETACH)
        value = vgpu.value_of(self)
        with _disable_current_modes():
            return value.clone().numpy()

    return numpy


def _to_array(vgpu: Surface) -> Callable[..., Any]:
    def __array__(self: FakeTensor, dtype: Any = None, copy: Any = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    return __array__


def _to_list(vgpu: Surface) -> Callable[..., Any]:
    def tolist(self: FakeTensor) -> Any:
        value = vgpu.value_of(self)
        with _disable_current_modes():
            return value.tolist()

    return tolist


def _formatted(self: FakeTensor, spec: str) -> str:
    if self.dim() == 0 and not self.is_meta:
        return format(self.item(), spec)
    return object.__format__(self, spec)


def _printed(vgpu: Surface) -> Callable[..., str]:
    def __repr__(self: FakeTensor, *, tensor_contents: Any = None) -> str:
        prefix = "Parameter containing:\n" if getattr(self, "_is_param", False) else ""
        suffix = [f"device='{self.fake_device}'"] if self.fake_device.type != "cpu" else []
        if self.fake_mode.in_kernel_invocation:  # an error's text: nothing can be computed now
            return f"FakeTensor(..., size={tuple(self.shape)}, dtype={self.dtype})"
        if self.numel() <= _MOST_PRINTED and self.fake_device.type != "meta":
            value = vgpu.value_of(self)
            with _disable_current_modes():
                body = repr(value.detach())
            body = body.removeprefix("tensor(").removesuffix(")")
        else:
            body, suffix = "...", [*suffix, f"size={tuple(self.shape)}", f"dtype={self.dtype}"]
        if self.grad_fn is not None:
            suffix.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
        elif self.requires_grad:
            suffix.append("requires_grad=True")
        return f"{prefix}tensor({', '.join([body, *suffix])})"

    return __repr__


# -- identity: copying, sharing, replacing the data


def _deepcopy(self: FakeTensor, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment."
        )
    with torch.no_grad():
        made = self.clone(memory_format=torch.preserve_format)
    own = {
        name: value
        for name, value in self.__dict__.items()
        if name not in made.__dict__ and not name.startswith("_ebbtide")
    }
    is_parameter = own.pop("_is_param", False)
    made.requires_grad_(self.requires_grad)
    if is_parameter:
        made._is_param = True
    memo[id(self)] = made
    made.__dict__.update(copy.deepcopy(own, memo))
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    return made


def _set_data(target: torch.Tensor, value: torch.Tensor) -> None:
    # Under a function mode PyTorch would look `Tensor.data` up again and find ours.
    with torch._C.DisableTorchFunction():
        _DATA.__set__(target, value)


def adopt(target: torch.Tensor, value: FakeTensor) -> None:
    """Make the real tensor `target` the fake `value` while it stays the same object.

    Raises:
        RuntimeError: something in C++ holds `target` too, so it cannot be exchanged.
    """
    requires_grad, is_parameter = target.requires_grad, isinstance(target, torch.nn.Parameter)
    with torch.no_grad(), _disable_current_modes():
        fresh = torch.Tensor._make_subclass(
            FakeTensor,
            torch.empty(0, device="meta"),
            False,
            dispatch_device=True,
            device_for_backend_keys=value.fake_device,
        )
        fresh.__dict__.update(value.__dict__)
        _set_data(fresh, value)
    torch.utils.swap_tensors(target, fresh)
    target.requires_grad_(requires_grad)
    if is_parameter:
        target._is_param = True


def _fake_data(vgpu: Surface) -> property:
    def get(self: FakeTensor) -> Any:
        return _DATA.__get__(self)

    def replace(self: FakeTensor, value: torch.Tensor) -> None:
        fake = value if isinstance(value, FakeTensor) else faked(vgpu, value)
        _set_data(self, fake)
        self._fake_device = fake._fake_device
        shadows = vgpu.mode.shadows
        shadows.remember(self, shadows.known(fake))

    return property(get, replace)


def _real_data(vgpu: Surface) -> property:
    def get(self: torch.Tensor) -> Any:
        return _DATA.__get__(self)

    def replace(self: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(value, FakeTensor):
            adopt(self, value)
        else:
            _set_data(self, value)

    return property(get, replace)


# -- memory on the host


class Pinned:
    """Which real tensors lie in pinned memory: known by their storages."""

    def __init__(self) -> None:
        self._storages: weakref.WeakSet[Any] = weakref.WeakSet()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory, or the tensor itself if it is there already."""
        if tensor.device.type == "cuda":
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        if isinstance(tensor, FakeTensor) or self.holds(tensor):
            return tensor
        with torch.no_grad():
            return self.mark(tensor.detach().clone())

    def mark(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that the tensor lies in pinned memory; returns it."""
        self._storages.add(tensor.untyped_storage())
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is pinned."""
        if isinstance(tensor, FakeTensor):
            return False
        return tensor.untyped_storage() in self._storages


def _record_stream(vgpu: Surface) -> Callable[..., None]:
    def record_stream(self: FakeTensor, stream: torch.Stream) -> None:
        vgpu.memory.record_stream(self, stream.stream_id)

    return record_stream


# -- types named torch.cuda.FloatTensor


class _CudaType(type):
    """Classes such as `torch.cuda.FloatTensor`: calling one makes a tensor."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype is cls.dtype

    def __call__(cls, *sizes: Any) -> torch.Tensor:
        if len(sizes) == 1 and not isinstance(sizes[0], int | torch.Size):
            return torch.tensor(sizes[0], dtype=cls.dtype, device=CUDA)
        return torch.empty(*sizes, dtype=cls.dtype, device=CUDA)


def _convert(original: Callable[..., Any]) -> Callable[..., Any]:
    def type(self: torch.Tensor, dtype: Any = None, *more: Any, **named: Any) -> Any:
        if isinstance(dtype, _CudaType):
            return self.to(CUDA, dtype.dtype)
        return original(self, dtype, *more, **named)

    return type


_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def _default_type(patches: PatchSet) -> Callable[[Any], None]:
    original = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if not name.startswith("torch.cuda."):
            original(kind)
            return
        torch.set_default_dtype(_TYPES[name.rpartition(".")[2]])
        torch.set_default_device(CUDA)

    return set_default_tensor_type


def _keep_defaults(patches: PatchSet) -> None:
    """Put back what a program may set for good: default device and dtype."""
    dtype = torch.get_default_dtype()
    device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)

    def back() -> None:
        torch.set_default_dtype(dtype)
        if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not device:
            torch.set_default_device(None if device is None else device.device)

    patches.on_undo(back)


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Give fake tensors the rest of a tensor's interface."""
    _keep_defaults(patches)
    pinned = Pinned()
    vgpu.mode.mark_pinned = pinned.mark
    patches.set_all(
        FakeTensor,
        {
            "numpy": _to_numpy(vgpu),
            "__array__": _to_array(vgpu),
            "tolist": _to_list(vgpu),
            "__format__": _formatted,
            "__repr__": _printed(vgpu),
            "__deepcopy__": _deepcopy,
            "data_ptr": _data_ptr,
            "data": _fake_data(vgpu),
            "record_stream": _record_stream(vgpu),
            "share_memory_": lambda self: self,
            "is_shared": lambda self: self.is_cuda,
        },
    )
    patches.set(torch.UntypedStorage, "data_ptr", _storage_data_ptr)
    patches.set(torch.UntypedStorage, "resize_", _resize_storage(vgpu))
    patches.set(torch.Tensor, "data", _real_data(vgpu))
    patches.set(torch.Tensor, "pin_memory", lambda self, device=None: (
        pinned.pin(self) if active(vgpu) else self
    ))  # fmt: skip
    patches.set(torch.Tensor, "is_pinned", lambda self, device=None: pinned.holds(self))
    patches.wrap(torch.Tensor, "type", _convert)
    for name, dtype in _TYPES.items():
        kind = _CudaType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        patches.set(torch.cuda, name, kind)
    patches.set(torch, "set_default_tensor_type", _default_type(patches))
