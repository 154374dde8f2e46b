"""ResNet-18 on images from a folder-like dataset: workers, augmentation, AMP, metrics, EMA."""
# ruff: noqa: B905

import argparse
import copy
import time

import numpy as np
import torch
import torch.nn as nn
import torchvision
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--channels-last", action="store_true")
args = parser.parse_args()

device = torch.device("cuda:0")
torch.backends.cudnn.benchmark = True
print("using", torch.cuda.get_device_name(device), "capability", torch.cuda.get_device_capability())


class Noise(Dataset):
    classes = tuple(f"class{i}" for i in range(10))

    def __init__(self, count, train):
        self.count, self.train = count, train
        steps = [transforms.RandomHorizontalFlip()] if train else []
        self.transform = transforms.Compose(
            [*steps, transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)]
        )

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        image = rng.integers(0, 255, (args.size, args.size, 3), dtype=np.uint8)
        return self.transform(transforms.functional.to_pil_image(image)), int(i % 10)


class AverageMeter:
    def __init__(self, name, fmt=":.3f"):
        self.name, self.fmt = name, fmt
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def __str__(self):
        return ("{name} {avg" + self.fmt + "}").format(
            name=self.name, avg=self.sum / max(1, self.count)
        )


def accuracy(output, target, topk=(1, 5)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [
            correct[:k].reshape(-1).float().sum(0, keepdim=True) * 100 / len(target) for k in topk
        ]


train_set, val_set = Noise(32, True), Noise(16, False)
train = DataLoader(
    train_set,
    args.batch,
    sampler=RandomSampler(train_set, generator=torch.Generator().manual_seed(0)),
    num_workers=args.workers,
    pin_memory=True,
    persistent_workers=args.workers > 0,
    drop_last=True,
)
val = DataLoader(val_set, args.batch, num_workers=args.workers, pin_memory=True)

model = torchvision.models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
model = model.to(device)  # after the optimizer: it must follow
if args.channels_last:
    model = model.to(memory_format=torch.channels_last)
ema = copy.deepcopy(model).requires_grad_(False)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1).cuda(device)
scaler = torch.amp.GradScaler()
scheduler = SequentialLR(
    optimizer,
    [LinearLR(optimizer, 0.1, total_iters=2), CosineAnnealingLR(optimizer, 10)],
    milestones=[2],
)

for epoch in range(args.epochs):
    model.train()
    losses, top1, batch_time = AverageMeter("loss"), AverageMeter("acc1"), AverageMeter("time")
    end = time.time()
    for i, (images, target) in enumerate(train):
        assert images.device.type == "cpu" and images.is_pinned()
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        if args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
            loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.lerp_(p, 0.01)
            for e, b in zip(ema.buffers(), model.buffers()):
                e.copy_(b)
        batch_time.update(time.time() - end)
        end = time.time()
        print(f"[{epoch}][{i}] {losses} {top1} {batch_time} lr {scheduler.get_last_lr()[0]:.4f}")
    ema.eval()
    confusion = torch.zeros(10, 10, dtype=torch.long)
    with torch.inference_mode():
        for images, target in val:
            predicted = ema(images.to(device)).argmax(1).cpu()
            for t, p in zip(target.view(-1), predicted.view(-1)):
                confusion[t.long(), p.long()] += 1
    print("accuracy", (confusion.diag().sum() / confusion.sum()).item())
    assert confusion.sum() == len(val_set)
assert next(model.parameters()).is_cuda and optimizer.param_groups[0]["params"][0].is_cuda
print("finished")
