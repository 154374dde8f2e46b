"""U-Net segmentation: skip connections, Dice loss, IoU on the CPU, plateau schedule, best model."""
# ruff: noqa: B007, B905, RUF005, RUF007

import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Shapes(Dataset):
    def __init__(self, count=20, size=64):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rng = np.random.RandomState(i)
        yy, xx = np.mgrid[: self.size, : self.size]
        cx, cy, r = rng.randint(10, self.size - 10, 2).tolist() + [rng.randint(4, 12)]
        mask = ((xx - cx) ** 2 + (yy - cy) ** 2 < r * r).astype(np.int64)
        image = (mask + rng.randn(self.size, self.size) * 0.2).astype(np.float32)
        return {"image": torch.from_numpy(image)[None], "mask": torch.from_numpy(mask)}


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, n=2, base=16, bilinear=False):
        super().__init__()
        c = [base, base * 2, base * 4, base * 8]
        self.inc = DoubleConv(1, c[0])
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b)) for a, b in zip(c, c[1:])
        )
        self.up = nn.ModuleList()
        self.conv = nn.ModuleList()
        for a, b in zip(c[:0:-1], c[-2::-1]):
            self.up.append(
                nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(a, b, 1))
                if bilinear
                else nn.ConvTranspose2d(a, b, 2, stride=2)
            )
            self.conv.append(DoubleConv(a, b))
        self.out = nn.Conv2d(base, n, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for d in self.down:
            skips.append(d(skips[-1]))
        x = skips.pop()
        for up, conv in zip(self.up, self.conv):
            x = up(x)
            skip = skips.pop()
            dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
            x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
            x = conv(torch.cat([skip, x], 1))
        return self.out(x)


def dice_loss(probs, target, eps=1e-6):
    inter = 2 * (probs * target).sum(dim=(-1, -2))
    sets = probs.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets = torch.where(sets == 0, inter, sets)
    return 1 - ((inter + eps) / (sets + eps)).mean()


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dataset = Shapes()
train_set, val_set = random_split(dataset, [16, 4], generator=torch.Generator().manual_seed(0))
train = DataLoader(train_set, 4, shuffle=True, num_workers=1, pin_memory=True)
val = DataLoader(val_set, 2, num_workers=0)
model = UNet().to(device=device, memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(
    model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9, foreach=True
)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
scaler = torch.amp.GradScaler("cuda")
folder, best = tempfile.mkdtemp(), -1.0


@torch.inference_mode()
def evaluate():
    model.eval()
    ious = []
    for batch in val:
        image = batch["image"].to(device, memory_format=torch.channels_last)
        with torch.autocast(device.type):
            logits = model(image)
        prediction = logits.argmax(1).cpu().numpy().astype(bool)
        truth = batch["mask"].numpy().astype(bool)
        inter, union = (prediction & truth).sum(), (prediction | truth).sum()
        ious.append(inter / max(1, union))
    model.train()
    return float(np.mean(ious))


for epoch in range(2):
    total = 0.0
    for step, batch in enumerate(train):
        image = batch["image"].to(device, dtype=torch.float32, memory_format=torch.channels_last)
        mask = batch["mask"].to(device, dtype=torch.long)
        with torch.autocast(device.type, enabled=True):
            logits = model(image)
            loss = F.cross_entropy(logits, mask)
            onehot = F.one_hot(mask, 2).permute(0, 3, 1, 2).float()
            loss = loss + dice_loss(F.softmax(logits, dim=1).float(), onehot)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    score = evaluate()
    scheduler.step(score)
    print(f"epoch {epoch}: loss {total / (step + 1):.3f} IoU {score:.3f}")
    if score > best:
        best = score
        torch.save(model.state_dict(), os.path.join(folder, "best.pth"))
state = torch.load(os.path.join(folder, "best.pth"), map_location=device)
model.load_state_dict(state)
odd = torch.randn(1, 1, 51, 45, device=device)
assert model(odd).shape == (1, 2, 51, 45)
print("finished")
