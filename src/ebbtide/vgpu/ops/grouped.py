"""`_grouped_mm` of dtypes that its meta kernel refuses.

The CUDA operator takes float32 and float16 too, group by group by ordinary products;
the meta kernel of 2.13 wants bfloat16. Output layout: create_grouped_gemm_output_tensor
in aten/src/ATen/native/GroupedMMUtils.h of pytorch/pytorch @ 00fc08aa, rows padded to
16 bytes.
"""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten
HANDLERS: dict[Any, Any] = {}
_ROW_BYTES = 16


def output_shape(left: tuple[int, ...], right: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """Shape of the product of matrices or stacks of them, `groups` of them."""
    if len(left) == 2 and len(right) == 2:
        return (groups, left[0], right[1])
    if len(left) == 2:
        return (left[0], right[2])
    if len(right) == 2:
        return (left[1], right[1])
    return (left[0], left[1], right[2])


def _grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    left, right = args[:2]
    if left.dtype is torch.bfloat16:
        made: torch.Tensor = mode.run(func, args, kwargs)
        return made
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    groups = offsets.shape[0] if offsets is not None else 0
    shape = output_shape(tuple(left.shape), tuple(right.shape), groups)
    dtype = (args[4] if len(args) > 4 else kwargs.get("out_dtype")) or left.dtype
    step = _ROW_BYTES // dtype.itemsize
    row = -(-shape[-1] // step) * step
    stride = (row, 1) if len(shape) == 2 else (shape[1] * row, row, 1)
    mode.record_only(func, args, kwargs)
    made = mode.new_tensor(shape, left, dtype, stride)
    return made


if hasattr(_aten, "_grouped_mm"):  # since 2.8
    HANDLERS[_aten._grouped_mm.default] = _grouped_mm
