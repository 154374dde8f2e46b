"""A cache from an operation's arguments to the metadata of what it returns.

FakeTensor works out shapes by running Python meta kernels, about 0.4 ms an
operation. A training step repeats few distinct ones: the key here is all that
can change the answer (operation, shapes, strides, offsets, dtypes, devices,
scalars), the value a `Plan` from which the outputs are made directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_META = torch.device("meta")
_SCALARS = frozenset({int, float, bool, str, type(None), complex})
_empty_strided = torch.ops.aten.empty_strided.default
_empty = torch.ops.aten.empty.memory_format
_set_storage = torch.ops.aten.set_.source_Storage_storage_offset
_make_subclass = torch.Tensor._make_subclass
_throw_on_data_ptr = torch._C._set_throw_on_mutable_data_ptr
_in_inference_mode = torch.is_inference_mode_enabled


class Output:
    """How one output is made: the same object as an input, a view of one, or new."""

    __slots__ = ("alias", "device", "dtype", "nbytes", "offset", "same", "shape", "stride")

    def __init__(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.same = self.alias = -1
        self.shape, self.stride, self.offset = shape, stride, 0
        self.dtype, self.device = dtype, device
        # Bytes to allocate: zero for views and for tensors that are not on the GPU.
        self.nbytes = 0
        if device.type == "cuda" and 0 not in shape:
            span = sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1
            self.nbytes = span * dtype.itemsize

    @classmethod
    def of(cls, tensor: FakeTensor, same: int, alias: int) -> Output:
        """How `tensor` was made: input `same` itself, a view of input `alias`, or new (-1)."""
        made = cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device)
        made.same, made.alias, made.offset = same, alias, int(tensor.storage_offset())
        if same >= 0 or alias >= 0:
            made.nbytes = 0
        elif made.nbytes:
            made.nbytes = tensor.untyped_storage().nbytes()
        return made


class Plan:
    """What an operation does with these arguments, worked out once.

    Attributes:
        outputs: one an output, None where the operation returns None there; None
            altogether if the operation must be run each time.
        wrap: `tuple`, `list`, or None for a single output.
        kernel: what the GPU does (`ebbtide.vgpu.kernel.Kernel`), None for pure views.
        small: whether the single output is small enough to carry a value.
    """

    __slots__ = ("kernel", "outputs", "small", "wrap")

    def __init__(
        self, outputs: tuple[Output | None, ...] | None, wrap: type | None, kernel: Any
    ) -> None:
        self.outputs = outputs
        self.wrap = wrap
        self.kernel = kernel
        self.small = False


def key_of(values: Iterable[Any], key: list[Any], tensors: list[torch.Tensor]) -> None:
    """Append to `key` what identifies `values`, and every tensor in them to `tensors`.

    Raises:
        RuntimeError: a tensor has no strides, or its shape does not tell its size.
    """
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            tensors.append(value)
            if value.is_sparse:
                raise RuntimeError("its shape does not tell how many elements it has")
            key += (
                value.dtype,
                value.shape,
                value.stride(),
                value.storage_offset(),
                value._fake_device,
            )
        elif kind in _SCALARS:
            # 1, 1.0 and True are equal but not the same argument.
            key.append(kind)
            key.append(value)
        elif kind is list or kind is tuple:
            key.append(len(value))
            key_of(value, key, tensors)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
            key += ("real", value.dtype, value.shape, value.stride())
        else:
            key.append(value)


class FakeMaker:
    """Makes fake tensors from metadata without going through FakeTensor's own dispatch."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        self._fake_mode = fake_mode

    def _template(self, device: torch.device) -> dict[str, Any]:
        known = self._attributes.get(device)
        if known is None:
            example = FakeTensor(self._fake_mode, torch.empty(0, device=_META), device)
            known = self._attributes[device] = dict(example.__dict__)
        return known

    def like(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A fresh fake tensor on `device` with the metadata of `tensor`."""
        return self.make(Output(tuple(tensor.shape), tensor.stride(), tensor.dtype, device), [])

    def make(self, output: Output, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The output that `output` describes, given the operation's tensors."""
        if output.same >= 0:
            return tensors[output.same]
        if output.alias < 0:
            element = _empty_strided(output.shape, output.stride, dtype=output.dtype, device=_META)
        else:
            if _in_inference_mode() and not tensors[output.alias].is_inference():
                # A view of a normal tensor is a normal one in inference mode too.
                with torch.inference_mode(False):
                    return self.make(output, tensors)
            element = _empty((0,), dtype=output.dtype, device=_META)
            storage = tensors[output.alias].untyped_storage()
            _set_storage(element, storage, output.offset, output.shape, output.stride)
        return self._wrap(element, output.device)

    def _wrap(self, element: torch.Tensor, device: torch.device) -> torch.Tensor:
        made: torch.Tensor = _make_subclass(
            FakeTensor,
            element,
            False,
            dispatch_device=True,
            device_for_backend_keys=device,
        )
        _throw_on_data_ptr(made)
        made.__dict__.update(self._template(device))
        return made


def describe_outputs(
    result: Any, tensors: list[torch.Tensor], converted: list[torch.Tensor]
) -> tuple[tuple[Output | None, ...] | None, type | None]:
    """What `Plan` needs to make `result` again.

    Args:
        result: what the operation returned.
        tensors: its tensor arguments as given.
        converted: the same with real tensors replaced by fake ones.

    Returns:
        The outputs, or None if they cannot be made from metadata alone, and how
        they are wrapped.
    """
    wrap = type(result) if type(result) in (tuple, list) else None
    identities = {id(tensor): i for i, tensor in enumerate(converted)}
    storages = {
        tensor.untyped_storage()._cdata: i
        for i, tensor in reversed(list(enumerate(converted)))
        if isinstance(tensor, FakeTensor) and tensor.layout is torch.strided
    }
    outputs: list[Output | None] = []
    fresh: set[int] = set()
    for item in result if wrap else (result,):
        if item is None:
            outputs.append(None)
            continue
        if not isinstance(item, FakeTensor) or item.layout is not torch.strided:
            return None, wrap
        storage = item.untyped_storage()._cdata
        if storage in fresh:  # two outputs share a new storage
            return None, wrap
        same, alias = identities.get(id(item), -1), storages.get(storage, -1)
        if alias >= 0 and not isinstance(tensors[alias], FakeTensor) and same < 0:
            return None, wrap
        if same < 0 and alias < 0:
            fresh.add(storage)
        outputs.append(Output.of(item, same, alias))
    return tuple(outputs), wrap
