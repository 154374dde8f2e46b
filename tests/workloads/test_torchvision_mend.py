"""The operators that stand in for torchvision's compiled half."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import box_iou, nms, roi_align

from ebbtide.workloads.torchvision_mend import _libraries, mend_torchvision

# Where torchvision's own library loads, its own kernels are tested by torchvision.
mended = pytest.mark.skipif(not _libraries, reason="torchvision's compiled half loads here")


def _boxes(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 10
    return torch.cat([corner, corner + 0.5 + torch.rand(count, 2, generator=generator) * 8], 1)


@mended
@given(count=st.integers(0, 30), seed=st.integers(0, 99), limit=st.floats(0.05, 0.95))
def test_kept_boxes_are_the_greedy_choice(count: int, seed: int, limit: float) -> None:
    boxes = _boxes(count, seed)
    scores = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    kept = nms(boxes, scores, limit)
    chosen: list[int] = []
    overlap = box_iou(boxes, boxes)
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all(overlap[i, j] <= limit for j in chosen):
            chosen.append(i)
    assert kept.tolist() == chosen


@mended
@pytest.mark.parametrize("ratio", [2, -1])
@pytest.mark.parametrize("aligned", [False, True])
def test_pooling_is_torchvisions_python_version(ratio: int, aligned: bool) -> None:
    """Inside the image: at its border that version differs from the compiled one."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(2, 3, 14, 16, generator=generator, dtype=torch.double)
    boxes = _boxes(6, 1).double() * 0.5 + 2
    rois = torch.cat([torch.tensor([0.0, 1, 0, 1, 0, 1])[:, None], boxes], 1)
    plain = sys.modules["torchvision.ops.roi_align"]._roi_align.__wrapped__
    grads, outputs = [], []
    for call in (
        lambda x: roi_align(x, rois, (3, 4), 0.8, ratio, aligned),
        lambda x: plain(x, rois, 0.8, 3, 4, ratio, aligned),
    ):
        x = features.clone().requires_grad_()
        y = call(x)
        weights = torch.arange(y.numel(), dtype=torch.double).view_as(y)
        grads.append(torch.autograd.grad((y * weights).sum(), x)[0])
        outputs.append(y)
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(grads[0], grads[1])


@mended
def test_pooling_of_a_constant_is_that_constant() -> None:
    features = torch.full((1, 2, 8, 8), 3.0)
    rois = torch.tensor([[0.0, 1, 1, 6, 6]])
    assert torch.equal(roi_align(features, rois, 4), torch.full((1, 2, 4, 4), 3.0))


@mended
def test_meta_kernels_are_torchvisions_own() -> None:
    features = torch.rand(1, 2, 8, 8, device="meta")
    assert roi_align(features, torch.rand(5, 5, device="meta"), 7).shape == (5, 2, 7, 7)


def test_a_second_mend_changes_nothing() -> None:
    before, finders = len(_libraries), list(sys.meta_path)
    mend_torchvision()
    assert (len(_libraries), sys.meta_path) == (before, finders)
    assert torchvision.__version__


def test_nothing_is_imported_or_declared_before_torchvision_is() -> None:
    code = (
        "import sys; from ebbtide.workloads import torchvision_mend as m; m.mend_torchvision();"
        "print('torchvision' in sys.modules, len(m._libraries));"
        "import torchvision, torch; print(torch.ops.load_library.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "0", "load_library"]
