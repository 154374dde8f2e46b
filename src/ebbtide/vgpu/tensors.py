"""What the virtual GPU needs to know of a tensor, without torch."""

from __future__ import annotations

import math
from typing import NamedTuple


class TensorMeta(NamedTuple):
    """Shape, strides (in elements) and dtype of a tensor; hashable, so it can key a cache.

    `dtype` is torch's name without the prefix: ``"float32"``, ``"bfloat16"``.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a scalar, 0 if a dimension is 0."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements the shape spans, as `torch.Tensor.nbytes` counts them."""
        return math.prod(self.shape) * self.itemsize
