"""`torch.nn`: parameters are fake from the start, and modules move in place.

A parameter made on the CPU becomes a fake CPU tensor at once, so that a model of
many billions of parameters is built without memory. Buffers and data stay real.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import parameter as _parameter
from torch.nn.parameter import Parameter

from ebbtide.vgpu.api.surface import CUDA, Surface, active, faked
from ebbtide.vgpu.api.tensors import adopt
from ebbtide.vgpu.patches import PatchSet

_Lazy: Any = vars(_parameter)["UninitializedTensorMixin"]


def _new_parameter(vgpu: Surface, original: Callable[..., Any]) -> Callable[..., Any]:
    def __new__(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is Parameter and active(vgpu):
            if data is None:
                data = torch.empty(0)
            if type(data) in (torch.Tensor, Parameter) and data.device.type == "cpu":
                data = faked(vgpu, data)
        return original(cls, data, requires_grad)

    return __new__


def _rebuilt(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``type(parameter)(data, requires_grad=...)`` work, as libraries write it."""

    def __new__(cls: type, *arguments: Any, **named: Any) -> Any:
        first = arguments[0] if arguments else None
        if isinstance(first, torch.Tensor) and "requires_grad" in named:
            return Parameter(first.detach(), named["requires_grad"])
        return original(cls, *arguments, **named)

    return __new__


def _move(parameter: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply `function` to a parameter; the result takes its place in the same object.

    From and to `meta` it becomes a new one, as in PyTorch: ties are lost there.
    """
    with torch.no_grad():
        moved = function(parameter)
    if moved is not parameter:
        if parameter.device.type == "meta" or moved.device.type == "meta":
            return Parameter(moved, parameter.requires_grad)
        parameter.data = moved
    gradient = parameter.grad
    if gradient is not None:
        with torch.no_grad():
            moved_gradient = function(gradient)
        if moved_gradient is not gradient:
            gradient.data = moved_gradient
            parameter.grad = gradient
    return parameter


def _is_plain(parameter: torch.Tensor) -> bool:
    return isinstance(parameter, FakeTensor) or type(parameter) is Parameter


def _aim(lazy: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Remember where a parameter without a shape has been moved to."""
    with torch.no_grad():
        sample = function(torch.empty(0, dtype=lazy.data.dtype))
    lazy._ebbtide_target = (sample.device, sample.dtype)


def _apply(vgpu: Surface, original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        if not active(vgpu):
            return original(self, fn, recurse)
        if recurse:
            for child in self.children():
                child._apply(fn)
        parameters = [tensor for tensor in self._parameters.values() if tensor is not None]
        lazy = [tensor for tensor in parameters if isinstance(tensor, _Lazy)]
        if not lazy and not all(_is_plain(tensor) for tensor in parameters):
            return original(self, fn, False)  # wrapper subclasses: PyTorch knows how
        mode, before = vgpu.mode, vgpu.mode.keep_host_copies_fake
        mode.keep_host_copies_fake = True  # `model.cpu()`: parameters stay fake there too
        try:
            for name, parameter in self._parameters.items():
                if isinstance(parameter, _Lazy):
                    _aim(parameter, fn)
                elif parameter is not None:
                    self._parameters[name] = _move(parameter, fn)
        finally:
            mode.keep_host_copies_fake = before
        for name, buffer in self._buffers.items():
            if isinstance(buffer, _Lazy):
                _aim(buffer, fn)
            elif buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    return apply


def _materialize(vgpu: Surface, original: Callable[..., Any]) -> Callable[..., Any]:
    """Lazy parameters: the shape comes with the first batch."""

    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        if not active(vgpu):
            original(self, shape, device, dtype)
            return
        aimed = getattr(self, "_ebbtide_target", (self.data.device, self.data.dtype))
        target = torch.device(device) if device is not None else aimed[0]
        value = torch.empty(shape, device=target, dtype=dtype or aimed[1])
        self.__class__ = self.cls_to_become
        if isinstance(value, FakeTensor):
            adopt(self, value)
        elif isinstance(self, Parameter):
            adopt(self, faked(vgpu, value))
        else:
            self.data = value

    return materialize


def copy_to_fake(vgpu: Surface, module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a real module whose parameters are fake; the original is left alone.

    Tied parameters stay tied. Buffers are copied as they are.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        made = Parameter(faked(vgpu, parameter), parameter.requires_grad)
        memo[id(parameter)] = made.to(CUDA) if parameter.is_cuda else made
    made_module: torch.nn.Module = copy.deepcopy(module, memo)
    return made_module


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Make parameters fake and modules move in place."""
    patches.set(Parameter, "__new__", staticmethod(_new_parameter(vgpu, Parameter.__new__)))
    patches.set(FakeTensor, "__new__", staticmethod(_rebuilt(FakeTensor.__new__)))
    patches.wrap(torch.nn.Module, "_apply", lambda original: _apply(vgpu, original))
    patches.wrap(_Lazy, "materialize", lambda original: _materialize(vgpu, original))
