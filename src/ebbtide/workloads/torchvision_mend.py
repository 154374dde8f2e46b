"""Let torchvision be imported beside a torch build that its compiled half does not fit.

The wheel of torchvision on PyPI is linked against CUDA libraries. Beside a CPU build
of torch its shared object does not load, its operators stay undefined, and
``import torchvision`` fails with "operator torchvision::nms does not exist"; timm and
much of Transformers fail with it. Here the operators are declared with the schemas of
torchvision's own registration, so that torchvision's Python half adds its own meta
kernels, autograd formulae and autocast rules to them. ``nms`` and ``roi_align`` get a
CPU kernel too, so that detection models run; the others have only a meta kernel.

Nothing happens where the shared object loads, or where torchvision is never imported.

Source of the schemas: torchvision 0.28.0, registrations in ``torchvision/_C.so``
(torchvision/csrc/ops/*.cpp of pytorch/vision), read from that wheel.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

_POOL = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_IMAGE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask"
)
SCHEMAS = (
    "_cuda_version() -> int",
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_POOL}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOL}, {_IMAGE}, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, "
    f"float rois_scale, int rois_zero_point, {_POOL}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_POOL}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOL}, {_IMAGE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_POOL}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOL}, "
    f"int sampling_ratio, {_IMAGE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_POOL}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, "
    f"{_POOL}, {_IMAGE}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
# Libraries unregister what they defined when they are collected, so they are kept here.
_libraries: list[torch.library.Library] = []


def mend_torchvision() -> None:
    """Arrange that a later ``import torchvision`` works; does nothing the second time.

    Cheap: torchvision itself is looked at only when somebody imports it.
    """
    if "torchvision" in sys.modules or any(isinstance(f, _Watch) for f in sys.meta_path):
        return
    sys.meta_path.insert(0, _Watch())


class _Watch(MetaPathFinder):
    """Sees the first import of torchvision, prepares it and steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(name)
            if spec is not None and spec.origin is not None:
                _prepare(Path(spec.origin).parent)
        return None


def _prepare(package: Path) -> None:
    """Declare the operators if the compiled half of the `package` does not load."""
    compiled = next(iter(sorted(package.glob("_C.*"))), None)
    if compiled is not None:
        try:
            torch.ops.load_library(str(compiled))
            return
        except (OSError, RuntimeError):
            pass
    _declare()
    _skip_loading_once()


def _skip_loading_once() -> None:
    """Make torchvision's own attempt to load ``_C`` count as a success, once.

    Its Python registrations (meta, autograd, autocast) run only then.
    """
    original = torch.ops.load_library

    def load_library(path: str) -> None:
        if Path(path).stem == "_C" and "torchvision" in str(path):
            del torch.ops.load_library
            return
        original(path)  # type: ignore[no-untyped-call]

    torch.ops.load_library = load_library  # type: ignore[method-assign]


def _declare() -> None:
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    # -1 is torchvision's own answer for "built without CUDA": no version check follows.
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    library.impl("_roi_align_backward", _roi_align_backward, "CPU")
    _libraries.append(library)


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy non-maximum suppression: indices of the kept boxes, best score first.

    Args:
        dets: ``[N, 4]`` boxes as x1, y1, x2, y2.
        scores: ``[N]``.
        iou_threshold: boxes that overlap a better one by more are dropped.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if not alive[i]:
            continue
        corner = torch.maximum(boxes[i, :2], boxes[i + 1 :, :2])
        size = (torch.minimum(boxes[i, 2:], boxes[i + 1 :, 2:]) - corner).clamp(min=0)
        shared = size[:, 0] * size[:, 1]
        alive[i + 1 :] &= shared <= iou_threshold * (area[i] + area[i + 1 :] - shared)
    return order[alive]


def _axis(start: Tensor, length: Tensor, bins: int, cells: int, ratio: int) -> Tensor:
    """How much each cell of one axis of the features counts in each bin of each box.

    Averages of bilinear samples over a grid are separable, so a pooled box is
    ``rows @ features @ columns.T`` with two of these.

    Args:
        start: ``[K]``, where the boxes begin, in cells.
        length: ``[K]``, how long they are, in cells.
        bins: pooled size.
        cells: size of the features.
        ratio: samples a bin; 0 or less for as many as a bin has cells.

    Returns:
        ``[K, bins, cells]``.
    """
    step = length / bins
    count = torch.full_like(step, ratio) if ratio > 0 else step.ceil().clamp(min=1)
    samples = torch.arange(int(count.max())) if len(count) else torch.arange(0)
    count, step, start = (x[:, None, None] for x in (count, step, start))
    centre = start + (torch.arange(bins)[None, :, None] + (samples + 0.5) / count) * step
    # Samples more than one cell outside are dropped, others are moved to the border.
    share = ((samples < count) & (centre >= -1) & (centre <= cells)) / count
    centre = centre.clamp(0, cells - 1)
    low = centre.floor().long()
    far = centre - low
    result = torch.zeros(len(start), bins, cells, dtype=step.dtype)
    result.scatter_add_(2, low, (1 - far) * share)
    return result.scatter_add_(2, (low + 1).clamp(max=cells - 1), far * share)


def _rows_and_columns(
    rois: Tensor,
    scale: float,
    pooled: tuple[int, int],
    size: tuple[int, int],
    ratio: int,
    align: bool,
) -> tuple[Tensor, Tensor]:
    """Both axes' weights for boxes ``[K, 5]``: image, x1, y1, x2, y2."""
    begin = rois[:, 1:3] * scale - (0.5 if align else 0.0)
    length = (rois[:, 3:5] - rois[:, 1:3]) * scale
    if not align:
        length = length.clamp(min=1.0)
    rows = _axis(begin[:, 1], length[:, 1], pooled[0], size[0], ratio)
    return rows, _axis(begin[:, 0], length[:, 0], pooled[1], size[1], ratio)


def _roi_align(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Average of bilinear samples in each bin of each box: ``[K, C, height, width]``."""
    pooled, size = (pooled_height, pooled_width), (features.shape[2], features.shape[3])
    rows, columns = _rows_and_columns(rois, spatial_scale, pooled, size, sampling_ratio, aligned)
    result = features.new_zeros(len(rois), features.shape[1], *pooled)
    for k, image in enumerate(rois[:, 0].long().tolist()):
        result[k] = rows[k] @ features[image] @ columns[k].T
    return result


def _roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """The transpose of `_roi_align`: ``[batch, C, H, W]``."""
    pooled, size = (pooled_height, pooled_width), (height, width)
    rows, columns = _rows_and_columns(rois, spatial_scale, pooled, size, sampling_ratio, aligned)
    result = grad.new_zeros(batch_size, channels, height, width)
    for k, image in enumerate(rois[:, 0].long().tolist()):
        result[image] += rows[k].T @ grad[k] @ columns[k]
    return result
