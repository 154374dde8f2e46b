"""List the distinct convolutions of public networks: `layers.py OUT.json`.

Each is [input channels and size, weight, stride, padding, dilation, groups], without a batch.
Needs torchvision and timm; networks are built on the meta device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import timm
import torch
import torchvision.models

SIZES = (64, 96, 128, 224, 288)
# Random choice of families; transformers bring their patch embeddings.
TIMM = """resnest50d res2net50_26w_4s seresnet50 skresnet50 dpn92 hrnet_w18 efficientnet_b0
efficientnet_b3 tf_efficientnetv2_s mobilenetv3_large_100 mobilenetv4_conv_small ghostnet_100
mnasnet_100 regnety_016 regnetx_032 repvgg_a2 convnextv2_tiny convnext_small nfnet_f0
xception41 xception71 inception_v4 inception_resnet_v2 darknet53 cspdarknet53 cspresnet50
dla34 dla60 densenet161 ese_vovnet39b hardcorenas_a lcnet_100 fbnetc_100 rexnet_100
selecsls42b tresnet_m vgg19_bn wide_resnet101_2 resnext101_32x8d legacy_senet154
repghostnet_100 poolformer_s12 coat_tiny levit_192 mobilevit_s edgenext_small fastvit_t8
inception_next_tiny focalnet_tiny_srf efficientformer_l1 gcresnet50t halonet26t resnetv2_50
visformer_tiny vit_base_patch16_224 swin_tiny_patch4_window7_224 beit_base_patch16_224
nf_resnet50 ecaresnet50d hgnet_tiny hgnetv2_b0 mixnet_s tinynet_a semnasnet_100
spnasnet_100 starnet_s1 rdnet_tiny davit_tiny""".split()


def convolutions(net: torch.nn.Module, size: int) -> Iterator[list[Any]]:
    """The two-dimensional convolutions that an image of `size` goes through."""
    found: list[list[Any]] = []

    def note(module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module.padding, tuple):
            shape, weight = list(inputs[0].shape[1:]), list(module.weight.shape)
            settings = [module.stride, module.padding, module.dilation]
            found.append([shape, weight, *map(list, settings), module.groups])

    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(note)
    with torch.device("meta"):
        net(torch.empty(1, 3, size, size))
    yield from found


def networks() -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Every network, with the image sizes to send through it."""
    with torch.device("meta"):
        for name in torchvision.models.list_models(module=torchvision.models):
            if not name.startswith(("vit", "swin", "maxvit", "regnet")):
                yield getattr(torchvision.models, name)(weights=None).eval(), SIZES
        for name in TIMM:
            net = timm.create_model(name, pretrained=False).eval()
            full = net.default_cfg["input_size"][-1]
            yield net, (full, full // 2 // 32 * 32)
    for name in ("regnet_y_400mf", "regnet_y_800mf", "regnet_x_400mf", "regnet_x_1_6gf"):
        # These compute their widths with tensors, so they need real ones first.
        yield getattr(torchvision.models, name)(weights=None).eval().to("meta"), SIZES


def unets() -> Iterator[list[Any]]:
    """The double convolutions of U-Nets of three widths, for segmentation and diffusion."""
    for width in (32, 64, 128):
        for full in (64, 128, 256, 572):
            channels, size = width, full
            for depth in range(5):
                for before in (channels // 2 if depth else 3, channels, 2 * channels):
                    weight = [channels, before, 3, 3]
                    yield [[before, size, size], weight, [1, 1], [1, 1], [1, 1], 1]
                channels, size = 2 * channels, size // 2


def main(out: str) -> None:
    """Write the list."""
    layers = {json.dumps(layer) for layer in unets()}
    for net, sizes in networks():
        for size in sizes:
            try:
                layers |= {json.dumps(layer) for layer in convolutions(net, size)}
            except (RuntimeError, ValueError, AssertionError, NotImplementedError):
                continue  # an image too small for the network
    with open(out, "w", encoding="utf-8") as file:
        json.dump([json.loads(layer) for layer in sorted(layers)], file)
    print(len(layers), "layers")


if __name__ == "__main__":
    main(sys.argv[1])
