"""mp.spawn with as many processes as GPUs, apex if there is one, old-style amp, environment."""

import os
import sys

import torch
import torch.multiprocessing as mp
from torch import nn

try:
    from apex import amp as apex_amp
except ImportError:
    apex_amp = None


def worker(rank, world, rate):
    torch.cuda.set_device(rank)
    torch.cuda.manual_seed(rank)
    model = nn.DataParallel(
        nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 8))
    ).cuda()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2)
    for step in range(3):
        x = torch.randn(16, 64).cuda(rank, non_blocking=True)
        with torch.amp.autocast("cuda"):
            out = model(x)
            assert out.dtype == torch.float16 and torch.is_autocast_enabled("cuda")
            with torch.amp.autocast("cuda", enabled=False):
                loss = out.float().logsumexp(-1).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"rank {rank}/{world} step {step} loss {loss.item():.3f} scale {scaler.get_scale()}")
    saved = model.module.state_dict()
    assert all(v.is_cuda for v in saved.values())
    os.environ["WORKER_DONE"] = str(rank)


if __name__ == "__main__":
    gpus = torch.cuda.device_count()
    if gpus == 0:
        sys.exit("no GPU")
    print("apex", apex_amp is not None, "flash", torch.backends.cuda.flash_sdp_enabled())
    mp.spawn(worker, args=(gpus, 0.5), nprocs=gpus, join=True)
    print("finished")
