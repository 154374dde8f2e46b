"""CTC loss: lengths may lie on the host beside log-probabilities on the GPU.

PyTorch turns the lengths into numbers first, but not for subclasses of Tensor, which
fake tensors are (aten/src/ATen/native/LossCTC.cpp of pytorch/pytorch @ 00fc08aa).
"""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten


def _lengths(mode: Any, lengths: torch.Tensor, longest: int) -> list[int]:
    known = mode.shadows.known(lengths)
    if known is not None:
        return [int(n) for n in known.tolist()]
    mode.note("ctc", "CTC loss with unknown lengths: all are taken as the longest")
    return [longest] * lengths.numel()


def register(mode: Any, library: torch.library.Library) -> None:
    """Turn lengths into numbers, as the CUDA path does for plain tensors."""

    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
        *rest: Any,
    ) -> Any:
        steps, longest = log_probs.shape[0], targets.shape[-1]
        return _aten.ctc_loss.IntList(
            log_probs,
            targets,
            _lengths(mode, input_lengths, steps),
            _lengths(mode, target_lengths, longest),
            *rest,
        )

    library.impl("ctc_loss.Tensor", ctc_loss, "AutogradCUDA")
