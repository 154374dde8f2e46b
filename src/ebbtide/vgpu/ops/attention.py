"""`scaled_dot_product_attention`: CUDA's choice of kernel, made here.

The composite asks a dispatch stub that exists on a GPU only. A `torch.library`
implementation for CUDA's autograd key takes its place while the virtual GPU is
on; under inference mode the operation reaches the dispatch mode whole.
"""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.vgpu.kernels.sdpa import sdpa

_aten = torch.ops.aten


def _in_mode(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    with mode:
        return sdpa(*args, **kwargs, context=mode.kernels.context)


def register(mode: Any, library: torch.library.Library) -> None:
    """Route CUDA attention through `sdpa` while `library` lives."""

    def implementation(*args: Any, **kwargs: Any) -> torch.Tensor:
        return sdpa(*args, **kwargs, context=mode.kernels.context)

    library.impl("scaled_dot_product_attention", implementation, "AutogradCUDA")


HANDLERS: dict[Any, Any] = {_aten.scaled_dot_product_attention.default: _in_mode}
