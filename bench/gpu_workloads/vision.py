"""Train a timm model, or run it in evaluation, for a few steps on random pictures.

python vision.py --model resnet50 --precision fp16 --channels-last
"""

import argparse
from contextlib import nullcontext

import timm
import torch

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--precision", choices=["fp32", *AUTOCAST], default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = timm.create_model(args.model, num_classes=1000).cuda().to(memory_format=layout)
    dtype = AUTOCAST.get(args.precision)
    model.train(not args.inference)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=args.precision == "fp16")
    for _ in range(args.steps):
        pictures = (
            torch.randn(args.batch, 3, args.image, args.image).cuda().to(memory_format=layout)
        )
        labels = torch.randint(0, 1000, (args.batch,)).cuda()
        with (
            torch.inference_mode(args.inference),
            torch.autocast("cuda", dtype=dtype) if dtype else nullcontext(),
        ):
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
        if not args.inference:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
