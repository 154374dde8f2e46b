"""Non-maximum suppression: the largest result, with what the kernel needs on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.torchvision_mend import mend_torchvision

mend_torchvision()
pytest.importorskip("torchvision")
from torchvision.ops import batched_nms, nms  # noqa: E402

Sizes = Callable[[], list[int]]
Names = Callable[[], list[str]]


def _boxes(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2, device="cuda")
    return torch.cat([corner, corner + 1], dim=1)


def test_every_box_is_kept_and_it_is_said(
    gpu: VirtualGpu, allocated: Sizes, op_names: Names
) -> None:
    boxes, scores = _boxes(130), torch.rand(130, device="cuda")
    op_names(), allocated()
    kept = nms(boxes, scores, 0.5)
    assert sorted(kept.tolist()) == list(range(130))
    assert gpu.guesses["nms"][1] == 1
    names = op_names()
    assert names == ["sort", "index_select", "torchvision::nms", "zeros"]
    words = 3  # 130 boxes, 64 to a word
    assert 8 * 130 * words in allocated()
    assert boxes[kept].shape == (130, 4)


def test_no_boxes(gpu: VirtualGpu) -> None:
    kept = nms(_boxes(0), torch.rand(0, device="cuda"), 0.5)
    assert (tuple(kept.shape), kept.dtype) == ((0,), torch.int64)
    assert "nms" not in gpu.guesses


def test_by_classes(gpu: VirtualGpu) -> None:
    classes = torch.tensor([0, 1] * 10, device="cuda")
    assert batched_nms(_boxes(20), torch.rand(20, device="cuda"), classes, 0.5).shape == (20,)


def test_temporaries_are_given_back(gpu: VirtualGpu) -> None:
    boxes, scores = _boxes(1000), torch.rand(1000, device="cuda")
    before = gpu.memory.memory_allocated()
    kept = nms(boxes, scores, 0.5)
    assert gpu.memory.memory_allocated() == before + 8192
    del kept
    assert gpu.memory.memory_allocated() == before
