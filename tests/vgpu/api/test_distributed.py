"""`torch.distributed` with one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.api.distributed import world_size_of
from ebbtide.vgpu.virtual_gpu import VirtualGpu

MiB = 1 << 20


@pytest.fixture
def group(gpu: VirtualGpu) -> Any:
    dist.init_process_group("nccl", rank=0, world_size=1)
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_group_is_what_was_asked_for(gpu: VirtualGpu, group: Any) -> None:
    assert dist.is_nccl_available() and dist.is_initialized()
    assert (dist.get_backend(), dist.get_rank(), dist.get_world_size()) == ("nccl", 0, 1)
    assert "NCCL" in gpu.guesses["distributed"][0]
    assert len(torch.cuda.nccl.version()) == 3
    sub = dist.new_group([0])
    assert dist.get_world_size(sub) == 1


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_collectives(gpu: VirtualGpu, group: Any) -> None:
    x = torch.tensor([1, 2], device="cuda")
    dist.all_reduce(x)
    dist.broadcast(x, src=0)
    dist.reduce(x, dst=0)
    assert x.tolist() == [1, 2]
    out = [torch.zeros_like(x)]
    dist.all_gather(out, x)
    assert out[0].tolist() == [1, 2]
    flat = torch.zeros(2, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(flat, x)
    assert flat.tolist() == [1, 2]
    dist.reduce_scatter_tensor(flat, x * 2)
    assert flat.tolist() == [2, 4]
    dist.all_to_all_single(flat, x)
    assert flat.tolist() == [1, 2]
    dist.scatter(flat, [x * 3], src=0)
    assert flat.tolist() == [3, 6]
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    dist.barrier()
    objects: list[Any] = [None]
    dist.all_gather_object(objects, {"a": 1})
    assert objects == [{"a": 1}]
    dist.broadcast_object_list(objects, src=0)
    with pytest.raises(VirtualGpuError, match="second process"):
        group.send([x], 0, 0)


def test_ddp_holds_buckets_beside_the_gradients(gpu: VirtualGpu, group: Any) -> None:
    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)]).cuda()
    parameters = torch.cuda.memory_allocated()
    assert parameters == 32 * MiB
    wrapped = DistributedDataParallel(model, device_ids=[0])
    assert torch.cuda.memory_allocated() == 2 * parameters
    x = torch.randn(4, 1024, device="cuda")
    wrapped(x).sum().backward()
    torch._C._cuda_clearCublasWorkspaces()
    del x
    assert torch.cuda.memory_allocated() == 3 * parameters
    assert next(wrapped.parameters()) is next(model.parameters())


def test_gradients_may_be_views_of_the_buckets(gpu: VirtualGpu, group: Any) -> None:
    model = nn.Linear(1024, 1024, bias=False).cuda()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped(torch.randn(4, 1024, device="cuda")).sum().backward()
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == 8 * MiB


def test_accumulation_without_sync(gpu: VirtualGpu, group: Any) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with model.no_sync():
            model(torch.randn(2, 4, device="cuda")).sum().backward()
        model(torch.randn(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "arguments", [{"world_size": 2, "rank": 0}, {"init_method": "tcp://x:1?world_size=4"}]
)
def test_more_processes_are_refused(gpu: VirtualGpu, arguments: dict[str, Any]) -> None:
    with pytest.raises(VirtualGpuError, match=r"with [24] processes.*world size of 1"):
        dist.init_process_group("gloo", **arguments)


def test_the_world_size_comes_from_argument_url_or_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert world_size_of(-1, None) == 1
    assert world_size_of(3, "env://") == 3
    assert world_size_of(-1, "tcp://host:1?rank=0&world_size=8") == 8
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert world_size_of(-1, "env://") == 5


def test_a_group_that_was_not_ended_is_left() -> None:
    with VirtualGpu("l4"):
        dist.init_process_group("gloo", rank=0, world_size=1)
        assert dist.get_backend() == "gloo"
    assert not dist.is_initialized()
    assert "ebbtide" not in dist.Backend.backend_list
    assert not hasattr(dist.Backend, "EBBTIDE")


def test_data_parallel_on_the_one_device(gpu: VirtualGpu) -> None:
    model = nn.DataParallel(nn.Linear(4, 2)).cuda()
    out = model(torch.randn(6, 4))
    assert out.is_cuda and out.shape == (6, 2)
    out.sum().backward()
    assert model.module.weight.grad is not None


def test_fully_sharded_with_one_process(gpu: VirtualGpu, group: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 64, device="cuda")).sum().backward()
    optimizer.step()
    assert all(p.grad is not None for p in model.parameters())


def test_a_device_mesh(gpu: VirtualGpu, group: Any) -> None:
    mesh = dist.device_mesh.init_device_mesh("cuda", (1,), mesh_dim_names=("dp",))
    assert mesh.size() == 1 and mesh.get_group("dp") is not None
