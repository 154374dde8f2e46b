"""Shapes of operations for which PyTorch has no meta kernel: what the CUDA kernels return.

Sources: aten/src/ATen/native of pytorch/pytorch @ 00fc08aa: cuda/RNN.cu, cuda/LossCTC.cu,
LossCTC.cpp, cuda/MultiMarginLoss.cu, cuda/MultiLabelMarginCriterion.cu,
cuda/FractionalMaxPool3d.cu, cudnn/GridSampler.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten
HANDLERS: dict[Any, Any] = {}
_GRU_SAVED = 5  # GRU_WORKSPACE_MULTIPLIER: reset, input, new, hidden state, hidden part of new


def _like(position: int) -> Callable[..., torch.Tensor]:
    """The single output has the shape of the argument at `position`."""

    def handler(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        mode.record_only(func, args, kwargs)
        like = args[position]
        made: torch.Tensor = mode.new_tensor(tuple(like.shape), like, like.dtype)
        return made

    return handler


def _gru_cell(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, ...]:
    mode.record_only(func, args, kwargs)
    hx = args[2]
    batch, hidden = hx.shape
    saved = mode.new_tensor((batch, _GRU_SAVED * hidden), hx, hx.dtype)
    return mode.new_tensor((batch, hidden), hx, hx.dtype), saved


def _gru_cell_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    mode.record_only(func, args, kwargs)
    grad, _saved, has_bias = args
    batch, hidden = grad.shape
    gates = [mode.new_tensor((batch, 3 * hidden), grad, grad.dtype) for _ in range(2)]
    dhx = mode.new_tensor((batch, hidden), grad, grad.dtype)
    # The sums over the batch.
    biases = [
        mode.new_tensor((3 * hidden,), grad, grad.dtype) if has_bias else None for _ in range(2)
    ]
    return (*gates, dhx, *biases)


def _cudnn_takes_ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether cuDNN's kernel is taken: int targets on the host in one row, float32, blank 0."""
    log_probs, targets, inputs, lengths, blank = args
    if not torch.backends.cudnn.enabled or blank != 0 or targets.dim() != 1:
        return False
    if log_probs.dtype is not torch.float32 or targets.dtype is not torch.int32:
        return False
    if targets.device.type != "cpu":
        return False
    steps = log_probs.shape[0]
    return all(n == steps for n in _numbers(mode, inputs)) and max(_numbers(mode, lengths)) <= 256


def _numbers(mode: Any, lengths: Any) -> list[int]:
    if isinstance(lengths, torch.Tensor):
        known: list[int] = mode.shadows.value(lengths, "a length").tolist()
        return known
    return list(lengths)


def _ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs, targets, _, lengths = args[:4]
    steps, batch = log_probs.shape[:2]
    # Targets in one row are as long as their lengths say, in two dimensions as wide as those.
    longest = targets.shape[1] if targets.dim() == 2 else max(_numbers(mode, lengths))
    mode.record_only(func, args, kwargs)
    alpha = mode.new_tensor((batch, steps, 2 * longest + 1), log_probs, log_probs.dtype)
    return mode.new_tensor((batch,), log_probs, log_probs.dtype), alpha


def _cudnn_ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = args[0]
    mode.record_only(func, args, kwargs)
    costs = mode.new_tensor((log_probs.shape[1],), log_probs, log_probs.dtype)
    return costs, mode.new_tensor(tuple(log_probs.shape), log_probs, log_probs.dtype)


def _left_aligned(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an encoder may drop padding by nested tensors: taken as no, which needs more."""
    mode.note("nested", "padding was kept where PyTorch may drop it by nested tensors")
    return False


def _grid_sampler(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """cuDNN's, which 2-d bilinear sampling takes: GridSampler.cpp of cudnn/."""
    image, grid = args[:2]
    packed = _packed(mode, grid)
    mode.record_only(func, args, kwargs)
    shape = (*image.shape[:2], *grid.shape[1:3])
    made: torch.Tensor = mode.new_tensor(shape, image, image.dtype)
    del packed  # until here, as in the kernel
    return made


def _packed(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy."""
    if tensor.is_contiguous():
        return tensor
    made: torch.Tensor = mode.call(
        _aten.clone.default, tensor, memory_format=torch.contiguous_format
    )
    return made


def _grid_sampler_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    packed = _packed(mode, args[1])  # held to the end
    mode.record_only(func, args, kwargs)
    del packed
    return tuple(mode.new_tensor(tuple(like.shape), like, like.dtype) for like in args[:2])


HANDLERS.update(
    {
        _aten._thnn_fused_gru_cell.default: _gru_cell,
        _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
        _aten._use_cudnn_ctc_loss.default: _cudnn_takes_ctc,
        _aten._use_cudnn_ctc_loss.Tensor: _cudnn_takes_ctc,
        _aten._cudnn_ctc_loss.default: _cudnn_ctc,
        _aten._cudnn_ctc_loss.Tensor: _cudnn_ctc,
        _aten._ctc_loss.default: _ctc,
        _aten._ctc_loss.Tensor: _ctc,
        _aten._ctc_loss_backward.default: _like(1),
        _aten._ctc_loss_backward.Tensor: _like(1),
        _aten.multi_margin_loss_backward.default: _like(1),
        _aten.multilabel_margin_loss_backward.default: _like(1),
        _aten.fractional_max_pool3d_backward.default: _like(1),
        _aten.cudnn_grid_sampler.default: _grid_sampler,
        _aten.cudnn_grid_sampler_backward.default: _grid_sampler_backward,
        _aten._nested_tensor_from_mask_left_aligned.default: _left_aligned,
    }
)

if hasattr(_aten, "_use_miopen_ctc_loss"):  # since 2.13
    for _name in _aten._use_miopen_ctc_loss.overloads():
        HANDLERS[getattr(_aten._use_miopen_ctc_loss, _name)] = lambda *_: False
