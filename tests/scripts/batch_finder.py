"""Find the largest batch that fits by doubling until out of memory, then bisecting; cap at 64."""
# ruff: noqa: B905, RUF007

import gc

import torch
from torch import nn


def is_oom(error):
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error)


def release():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())

    def forward(self, x):
        return x + self.conv(x)


def build():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        *[Block(64) for _ in range(4)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()


def try_batch(model, optimizer, n, size=256):
    try:
        x = torch.randn(n, 3, size, size, device="cuda")
        y = torch.randint(0, 10, (n,), device="cuda")
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.cuda.max_memory_allocated()
    except RuntimeError as error:
        if not is_oom(error):
            raise
        print(f"batch {n}: {str(error).splitlines()[0][:80]}")
        return None
    finally:
        x = y = None
        release()


model = build()
optimizer = torch.optim.AdamW(model.parameters())
low, high, cap, peaks = 0, 1, 512, {}
while high <= cap:
    peak = try_batch(model, optimizer, high)
    if peak is None:
        break
    peaks[high] = peak
    low, high = high, high * 2
high = min(high, cap + 1)
while high - low > 1 and low:
    middle = (low + high) // 2
    peak = try_batch(model, optimizer, middle)
    if peak is None:
        high = middle
    else:
        low, peaks[middle] = middle, peak
for n, peak in sorted(peaks.items()):
    print(f"batch {n:4d}: {peak / 2**30:.2f} GiB of {torch.cuda.mem_get_info()[1] / 2**30:.2f}")
print("largest", low)
assert low >= 1
sizes = sorted(peaks)
assert all(peaks[a] < peaks[b] for a, b in zip(sizes, sizes[1:]))
print("finished")
