"""Operations that hand a value to Python, and those that check one."""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.vgpu.tape import SYNC

_aten = torch.ops.aten
HANDLERS: dict[Any, Any] = {}


def _item(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode.tape.event(SYNC)
    return mode.shadows.scalar(args[0])


def _is_nonzero(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode.tape.event(SYNC)
    return bool(mode.shadows.scalar(args[0]))


def _equal(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode.tape.event(SYNC)
    left, right = (mode.shadows.known(tensor) for tensor in args[:2])
    if left is not None and right is not None:
        return torch.equal(left, right)
    mode.note("equal", "two tensors on the GPU were compared and taken as equal")
    same: bool = args[0].shape == args[1].shape
    return same


def _unscale(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Gradients are finite: GradScaler must not skip the step."""
    mode.record_only(func, args, kwargs)
    mode.shadows.remember(args[1], torch.zeros(args[1].shape, dtype=args[1].dtype, device="cpu"))


def _update_scale(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode.record_only(func, args, kwargs)
    mode.shadows.follow(func, args, kwargs, args[0])
    return args[0]


HANDLERS[_aten._local_scalar_dense.default] = _item
HANDLERS[_aten.item.default] = _item
HANDLERS[_aten.is_nonzero.default] = _is_nonzero
HANDLERS[_aten.equal.default] = _equal
HANDLERS[_aten._amp_foreach_non_finite_check_and_unscale_.default] = _unscale
HANDLERS[_aten._amp_update_scale_.default] = _update_scale


def register(mode: Any, library: torch.library.Library) -> None:
    """Answer `torch.tensor([x, y])` of tensors on the GPU.

    It reads each of them below the dispatch modes (`internal_new_from_data` in
    torch/csrc/utils/tensor_new.cpp of pytorch/pytorch @ 00fc08aa).
    """

    def scalar(tensor: torch.Tensor) -> Any:
        mode.tape.event(SYNC)
        return mode.shadows.scalar(tensor)

    library.impl("_local_scalar_dense", scalar, "CUDA")
