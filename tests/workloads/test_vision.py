"""torchvision and timm by name: tasks, targets, sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ebbtide.errors import TargetError, UsageError
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.training import Training
from ebbtide.workloads.vision import TimmModel, TorchvisionModel

OPTIONS = WorkloadOptions(batch=2, image=64, optimizer="none")
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("resnet18", "resnet"),
        ("lraspp_mobilenet_v3_large", "segmentation"),
        ("fasterrcnn_resnet50_fpn", "detection"),
        ("r3d_18", "video"),
        ("raft_small", "optical_flow"),
    ],
)
def test_the_task_is_known(name: str, kind: str) -> None:
    assert TorchvisionModel(name).kind == kind


@pytest.mark.parametrize("name", ["resnet18", "lraspp_mobilenet_v3_large", "mobilenet_v3_small"])
def test_a_torchvision_model_is_trained(name: str) -> None:
    training = Training(TorchvisionModel(name), OPTIONS, "cpu")
    training.step(0)
    assert all(p.grad is not None for p in training.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssd300_vgg16"])
def test_detection_has_losses_of_its_own(name: str) -> None:
    training = Training(TorchvisionModel(name), replace(OPTIONS, image=96), "cpu")
    training.step(0)
    assert any(p.grad is not None for p in training.model.parameters())


def test_detection_targets_follow_the_task() -> None:
    for name, extra in (
        ("fasterrcnn_resnet50_fpn", set()),
        ("maskrcnn_resnet50_fpn", {"masks"}),
        ("keypointrcnn_resnet50_fpn", {"keypoints"}),
    ):
        inputs = TorchvisionModel(name).make_inputs(OPTIONS, 2, CPU)
        assert len(inputs["images"]) == len(inputs["targets"]) == 2
        target = inputs["targets"][0]
        assert set(target) == {"boxes", "labels"} | extra
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
        assert target["boxes"].max() <= 64


@pytest.mark.parametrize("name", ["vit_b_16", "maxvit_t"])
def test_fixed_sizes_are_built_for_the_image(name: str) -> None:
    side = 64 if name == "vit_b_16" else 224
    options = replace(OPTIONS, image=side, inference=True, batch=1)
    architecture = TorchvisionModel(name)
    model = architecture.make_model(options).eval()
    with torch.no_grad():
        out = architecture.outputs(model, architecture.make_inputs(options, 1, CPU))
    assert out.shape == (1, 1000)


@pytest.mark.parametrize(
    ("name", "image", "side"),
    [
        ("resnet50", None, 224),
        ("inception_v3", None, 299),
        ("fcn_resnet50", None, 480),
        ("resnet50", 96, 96),
    ],
)
def test_images_are_those_of_torchvisions_recipes(name: str, image: int | None, side: int) -> None:
    options = replace(OPTIONS, image=image)
    assert TorchvisionModel(name).make_inputs(options, 1, CPU)["x"].shape == (1, 3, side, side)


def test_videos_have_frames() -> None:
    assert TorchvisionModel("r3d_18").make_inputs(OPTIONS, 1, CPU)["x"].shape == (1, 3, 16, 64, 64)
    own = replace(OPTIONS, image=None)
    for name, side in {"r3d_18": 112, "s3d": 224, "swin3d_t": 224, "mvit_v1_b": 224}.items():
        shape = TorchvisionModel(name).make_inputs(own, 1, CPU)["x"].shape
        assert shape == (1, 3, 16, side, side)


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_a_timm_model_is_trained(name: str) -> None:
    training = Training(TimmModel(name), OPTIONS, "cpu")
    training.step(0)
    assert all(p.grad is not None for p in training.model.parameters())


def test_timm_checkpoints_its_blocks() -> None:
    options = replace(OPTIONS, checkpointing=True)
    training = Training(TimmModel("vit_tiny_patch16_224"), options, "cpu")
    assert training.model.grad_checkpointing
    training.step(0)


def test_torchvision_has_no_checkpointing() -> None:
    with pytest.raises(UsageError, match="resnet18 has no checkpointing of its own"):
        Training(TorchvisionModel("resnet18"), replace(OPTIONS, checkpointing=True), "cpu")


@pytest.mark.parametrize(
    ("kind", "library"), [(TorchvisionModel, "torchvision"), (TimmModel, "timm")]
)
def test_an_unknown_name(kind: type, library: str) -> None:
    with pytest.raises(TargetError, match=f"{library} has no model 'resnet5'"):
        kind("resnet5")


@pytest.mark.parametrize("architecture", [TorchvisionModel("resnet18"), TimmModel("resnet10t")])
def test_images_are_no_text(architecture: TorchvisionModel | TimmModel) -> None:
    with pytest.raises(UsageError, match="^seq: .* reads no text"):
        architecture.make_model(replace(OPTIONS, seq=8))


def test_inference_has_no_targets() -> None:
    options = replace(OPTIONS, inference=True)
    assert set(TimmModel("resnet10t").make_inputs(options, 1, CPU)) == {"x"}
    assert set(TorchvisionModel("resnet18").make_inputs(options, 1, CPU)) == {"x"}
