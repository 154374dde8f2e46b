"""DistributedDataParallel with one process: sampler, no_sync, collectives, rank-0 checkpoint."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return rank, world


class Net(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(128, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )

    def forward(self, x):
        return self.net(x)


def reduce_mean(value, world):
    copy = value.detach().clone()
    dist.all_reduce(copy, op=dist.ReduceOp.SUM)
    return copy / world


def main():
    rank, world = setup()
    device = torch.device("cuda", torch.cuda.current_device())
    assert dist.get_backend() == "nccl" and dist.is_initialized() and dist.get_world_size() == 1
    torch.manual_seed(0)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Net()) if world > 1 else Net()
    model = DDP(model.to(device), device_ids=[device.index], gradient_as_bucket_view=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(64, 128), torch.randint(0, 10, (64,)))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True)
    accumulate = 2
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            if (i + 1) % accumulate:
                with model.no_sync():
                    (nn.functional.cross_entropy(model(x), y) / accumulate).backward()
                continue
            loss = nn.functional.cross_entropy(model(x), y) / accumulate
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        mean = reduce_mean(loss, world)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item():.4f}")
    gathered = [torch.zeros_like(mean) for _ in range(world)]
    dist.all_gather(gathered, mean)
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "seen": len(sampler)})
    assert objects == [{"rank": 0, "seen": 64}], objects
    stop = torch.tensor([0], device=device)
    dist.broadcast(stop, src=0)
    dist.barrier()
    if rank == 0:
        path = os.path.join(tempfile.mkdtemp(), "model.pt")
        torch.save(model.module.state_dict(), path)
        where = {f"cuda:{0}": f"cuda:{rank}"}
        model.module.load_state_dict(torch.load(path, map_location=where, weights_only=True))
    buckets = torch.cuda.memory_allocated() / 2**20
    print(f"allocated {buckets:.1f} MiB")
    dist.destroy_process_group()
    assert not dist.is_initialized()


if __name__ == "__main__":
    main()
    print("finished")
