"""What stands in `.grad` after a gradient was used up in backward: a shape without memory.

Left empty, a gradient that is gone would be skipped in silence: clipping would find a norm
of 0, a second backward pass would begin anew. Any use of this one is an error instead.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ebbtide.train.optimizer_twin import OptimizerError

_aten = torch.ops.aten
_ZERO = {_aten.zero_.default, _aten._foreach_zero_.default}
_WHO = (
    ("linalg_vector_norm", "Clipping by the norm of all gradients"),
    ("_foreach_norm", "Clipping by the norm of all gradients"),
    ("_amp_foreach_non_finite_check_and_unscale_", "GradScaler"),
    ("add", "A second backward pass"),
    ("_foreach_mul", "Scaling gradients"),
    ("clamp", "Clipping gradients by value"),
)


class SpentGradientError(OptimizerError, RuntimeError):
    """A gradient was asked for that the optimizer step in backward has used up."""


class SpentGradient(Tensor):
    """In place of the gradient of `parameter`. Zeroing it makes a gradient of zeros.

    Args:
        parameter: its shape, dtype and device are the gradient's.
    """

    parameter: weakref.ref[Tensor]

    @staticmethod
    def __new__(cls, parameter: Tensor) -> SpentGradient:
        """A tensor without memory."""
        made: SpentGradient = Tensor._make_wrapper_subclass(
            cls,
            parameter.shape,
            strides=parameter.stride(),
            dtype=parameter.dtype,
            device=parameter.device,
        )
        made.parameter = weakref.ref(parameter)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Zeroing is done, everything else refused."""
        if func in _ZERO:
            for each in args[0] if isinstance(args[0], (list, tuple)) else [args[0]]:
                _zero(each)
            return args[0] if func is _aten.zero_.default else None
        name = func._schema.name.split("::")[1]
        who = next((text for part, text in _WHO if name.startswith(part)), f"The operation {name}")
        raise SpentGradientError(
            f"{who} needs a gradient that is gone: the optimizer step runs in backward and frees "
            "each gradient there, and the parameters have moved on. Leave optimizer_in_backward "
            "out of the plan, or leave this out of the loop. For gradients added over several "
            "backward passes say how many (passes=), and call zero_grad before the next step."
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SpentGradient(shape={tuple(self.shape)}, dtype={self.dtype})"


def _zero(gradient: Tensor) -> None:
    if not isinstance(gradient, SpentGradient):
        gradient.zero_()
        return
    parameter = gradient.parameter()
    if parameter is not None:
        parameter.grad = torch.zeros_like(parameter)
