"""What the GPU does for one operation: temporaries, library workspaces, work.

Worked out once for each distinct set of arguments (see `metadata`), from the
rules in `kernels/` and the costs in `costs`.
"""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.gpus import Gpu
from ebbtide.vgpu.clock import seconds_of
from ebbtide.vgpu.costs import Cost, op_cost
from ebbtide.vgpu.kernels.blas import Workspace, workspaces
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.scratch import Scratch, scratch
from ebbtide.vgpu.tape import Names
from ebbtide.vgpu.tensors import TensorMeta

_DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def meta_of(value: Any) -> Any:
    """`value` with every tensor in it replaced by its `TensorMeta`, lists by tuples."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            value = value._values()
        elif value.layout is not torch.strided:
            value = value.values()
        return TensorMeta(
            tuple(value.shape), value.stride(), _DTYPE_NAMES[value.dtype], value.dtype.itemsize
        )
    if isinstance(value, list | tuple):
        return tuple(meta_of(item) for item in value)
    return value


class Kernel:
    """The row of the trace that one launch makes.

    Attributes:
        name: number of the operation's name in the tape.
        scratch: temporaries, in order.
        workspaces: library workspaces that must be there.
        rate: number of the name of the arithmetic rate it runs at.
        flops, moved_bytes, seconds: see `costs` and `clock`.
    """

    __slots__ = ("flops", "moved_bytes", "name", "rate", "scratch", "seconds", "workspaces")

    def __init__(
        self,
        name: int,
        scratch: tuple[Scratch, ...],
        workspaces: tuple[Workspace, ...],
        cost: Cost,
        rate: int,
        seconds: float,
    ) -> None:
        self.name = name
        self.scratch = scratch
        self.workspaces = workspaces
        self.flops, self.moved_bytes = cost.flops, cost.moved_bytes
        self.rate, self.seconds = rate, seconds


class KernelModel:
    """Describes the kernels of one GPU under one set of versions and switches."""

    def __init__(self, spec: Gpu, context: KernelContext, names: Names) -> None:
        self.spec = spec
        self.context = context
        self._names = names

    def describe(self, op_name: str, args: Any, kwargs: dict[str, Any], result: Any) -> Kernel:
        """The kernel of one operation.

        Args:
            op_name: ATen's name without namespace and overload, e.g. ``"addmm"``.
            args: its arguments.
            kwargs: those by name.
            result: what it returned.
        """
        inputs = meta_of(tuple(args) + tuple(kwargs.values()))
        outputs = result if isinstance(result, list | tuple) else (result,)
        metas = tuple(meta_of(item) for item in outputs if isinstance(item, torch.Tensor))
        cost = op_cost(op_name, inputs, metas)
        return Kernel(
            self._names.of("aten::" + op_name),
            scratch(op_name, inputs, metas, self.context),
            workspaces(op_name, inputs, self.context, beta=kwargs.get("beta", 1.0)),
            cost,
            self._names.of(cost.dtype_for_rate),
            seconds_of(self.spec, cost),
        )
