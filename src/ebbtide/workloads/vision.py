"""Models of torchvision and timm, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ebbtide.errors import MissingExtraError, TargetError, UsageError
from ebbtide.workloads.architecture import DTYPES
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.sums import sum_of
from ebbtide.workloads.torchvision_mend import mend_torchvision

DEFAULT_IMAGE = 224
OBJECTS = 3
# Sides that torchvision's own training recipes use, references/ of pytorch/vision 0.28.
DETECTION_IMAGE = 800
SEGMENTATION_IMAGE = 480
INCEPTION_IMAGE = 299
VIDEO_IMAGE = 112
WIDE_VIDEO = ("mvit", "s3d", "swin3d")  # cropped to 224: their weights' own transforms


class TorchvisionModel:
    """A torchvision model: classification, segmentation, detection, video or flow.

    Args:
        name: as `torchvision.models.list_models` has it.

    Raises:
        MissingExtraError: torchvision is not installed.
        TargetError: it has no model of that name.
    """

    default_batch = 8

    def __init__(self, name: str) -> None:
        models = _torchvision()
        try:
            builder = models.get_model_builder(name)
        except ValueError as error:
            raise TargetError(f"torchvision has no model {name!r}") from error
        self.name = name
        self.kind = builder.__module__.removeprefix("torchvision.models.").split(".")[0]
        self._builder = builder
        self.origin = f"torchvision's {name}"

    def make_model(self, options: WorkloadOptions) -> nn.Module:
        """The model on the CPU, without weights."""
        _no_text(self.name, options)
        settings: dict[str, Any] = {"weights": None}
        if self.kind in ("detection", "segmentation"):
            settings["weights_backbone"] = None
        if "inception" in self.name or self.name == "googlenet":
            settings["init_weights"] = False
        if options.image is not None and self.name.startswith(("vit_", "maxvit")):
            settings["image_size" if self.name[1] == "i" else "input_size"] = (
                options.image if self.name[1] == "i" else (options.image, options.image)
            )
        if options.image is not None and self.kind == "detection" and "ssd" not in self.name:
            settings |= {"min_size": options.image, "max_size": options.image * 2}
        model: nn.Module = self._builder(**settings)
        return model.to(DTYPES[options.dtype])

    def make_inputs(
        self, options: WorkloadOptions, batch: int, device: torch.device
    ) -> Mapping[str, Any]:
        """Images, and targets of the model's task."""
        dtype = DTYPES[options.dtype] if options.amp is None else torch.float32
        side = options.image or self.default_image()
        size = (batch, 3, *self._shape(side))
        images = torch.rand(size, device=device, dtype=dtype)
        if self.kind == "detection":
            targets = None if options.inference else _boxes(self.name, batch, side, device, dtype)
            return {"images": list(images), "targets": targets}
        if self.kind == "optical_flow":
            return {"image1": images, "image2": images.clone()}
        if options.inference:
            return {"x": images}
        shape = (batch, side, side) if self.kind == "segmentation" else (batch,)
        return {"x": images, "target": torch.randint(2, shape, device=device)}

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Call the model."""
        return model(*(v for k, v in inputs.items() if k != "target"))

    def loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Cross-entropy where there are classes, the model's own losses in detection."""
        outputs = self.outputs(model, inputs)
        if "target" not in inputs:
            return sum_of(outputs)
        if isinstance(outputs, dict):
            weights = {"out": 1.0, "aux": 0.5}
            parts = [
                weights[k] * nn.functional.cross_entropy(v, inputs["target"])
                for k, v in outputs.items()
            ]
            return torch.stack(parts).sum()
        if isinstance(outputs, tuple):
            outputs = outputs[0]
        return nn.functional.cross_entropy(outputs, inputs["target"])

    def decodes(self) -> bool:
        """Never."""
        return False

    def default_image(self) -> int:
        """Side of an image where none is asked for: its training recipe's."""
        if self.kind == "detection":
            return 300 if self.name.startswith("ssd") else DETECTION_IMAGE
        if self.kind == "segmentation":
            return SEGMENTATION_IMAGE
        if self.kind == "video":
            return DEFAULT_IMAGE if self.name.startswith(WIDE_VIDEO) else VIDEO_IMAGE
        return INCEPTION_IMAGE if "inception" in self.name else DEFAULT_IMAGE

    def _shape(self, side: int) -> tuple[int, ...]:
        if self.kind == "video":
            return (16, DEFAULT_IMAGE, DEFAULT_IMAGE) if "mvit" in self.name else (16, side, side)
        return (side, side)


def _boxes(
    name: str, batch: int, side: int, device: torch.device, dtype: torch.dtype
) -> list[dict[str, Tensor]]:
    """Three objects an image, with masks or keypoints where the model is trained on them."""
    targets = []
    for _ in range(batch):
        corner = torch.rand(OBJECTS, 2, device=device, dtype=dtype) * (side / 2)
        target = {
            "boxes": torch.cat([corner, corner + side / 4], dim=1),
            "labels": torch.ones(OBJECTS, device=device, dtype=torch.long),
        }
        if name.startswith("mask"):
            size = (OBJECTS, side, side)
            target["masks"] = torch.ones(size, device=device, dtype=torch.uint8)
        if name.startswith("keypoint"):
            target["keypoints"] = torch.ones(OBJECTS, 17, 3, device=device, dtype=dtype)
        targets.append(target)
    return targets


class TimmModel:
    """A timm model.

    Args:
        name: as `timm.list_models` has it.

    Raises:
        MissingExtraError: timm is not installed.
        TargetError: it has no model of that name.
    """

    default_batch = 8

    def __init__(self, name: str) -> None:
        timm = _timm()
        if not timm.is_model(name):
            near = timm.list_models(f"*{name.split('_')[0]}*")[:4]
            raise TargetError(
                f"timm has no model {name!r}." + (f" Near: {', '.join(near)}" if near else "")
            )
        self.name = name
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        self._fixed = bool(config and config.fixed_input_size)
        size = config.input_size if config else (3, DEFAULT_IMAGE, DEFAULT_IMAGE)
        self._channels, self._side = size[0], size[1]
        self.origin = f"timm's {name}"

    def make_model(self, options: WorkloadOptions) -> nn.Module:
        """The model on the CPU, without weights."""
        _no_text(self.name, options)
        settings: dict[str, Any] = {}
        if options.image is not None and self._fixed:
            settings["img_size"] = options.image
        try:
            model: nn.Module = _timm().create_model(self.name, pretrained=False, **settings)
        except (TypeError, ValueError, AssertionError) as error:
            if options.image is None:
                raise TargetError(f"timm cannot build {self.name}: {error}") from error
            raise UsageError(
                f"image: {self.name} cannot be built for {options.image} pixels: {error}"
            ) from error
        return model.to(DTYPES[options.dtype])

    def make_inputs(
        self, options: WorkloadOptions, batch: int, device: torch.device
    ) -> Mapping[str, Any]:
        """Images and classes."""
        dtype = DTYPES[options.dtype] if options.amp is None else torch.float32
        side = options.image or self._side
        images = torch.rand(batch, self._channels, side, side, device=device, dtype=dtype)
        if options.inference:
            return {"x": images}
        return {"x": images, "target": torch.randint(2, (batch,), device=device)}

    def default_image(self) -> int:
        """Side of an image where none is asked for: what its weights were trained on."""
        return int(self._side)

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Call the model."""
        return model(inputs["x"])

    def loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Cross-entropy; the sum of the outputs where the model gives no classes."""
        outputs = self.outputs(model, inputs)
        if isinstance(outputs, Tensor) and outputs.ndim == 2:
            return nn.functional.cross_entropy(outputs, inputs["target"])
        return sum_of(outputs)

    def decodes(self) -> bool:
        """Never."""
        return False


def _no_text(name: str, options: WorkloadOptions) -> None:
    if options.seq is not None:
        raise UsageError(f"seq: {name} reads no text")


def model_names() -> list[str]:
    """Every model of torchvision and timm, of those that are installed."""
    found: list[str] = []
    for library in (_torchvision, _timm):
        try:
            found += library().list_models()
        except MissingExtraError:
            continue
    return found


def _torchvision() -> Any:
    mend_torchvision()
    try:
        from torchvision import models
    except ImportError as error:
        raise MissingExtraError("A torchvision model", "torchvision", "vision") from error
    return models


def _timm() -> Any:
    mend_torchvision()
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError("A timm model", "timm", "vision") from error
    return timm
