"""Threads join the virtual GPU; loader workers leave it; spawned processes stay here."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.virtual_gpu import VirtualGpu


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        net = torch.nn.Linear(1, 1)  # computes for real in a worker
        torch.nn.init.constant_(net.weight, 2.0)
        value = net(torch.tensor([float(i)])) - net.bias
        return {"x": value.detach(), "fake": int(isinstance(value, FakeTensor)), "i": i}


def test_workers_compute_real_values(gpu: VirtualGpu) -> None:
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=True)
    batches = list(loader)
    assert batches[0]["x"].flatten().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert all(batch["fake"].sum() == 0 for batch in batches)
    assert all(batch["x"].is_pinned() for batch in batches)
    moved = batches[1]["i"].to("cuda", non_blocking=True)
    assert moved.tolist() == [4, 5, 6, 7]


def test_an_error_in_a_worker_is_the_programs(gpu: VirtualGpu) -> None:
    class Broken(IterableDataset[Any]):
        def __iter__(self) -> Any:
            raise KeyError("row 3")

    with pytest.raises(KeyError, match="row 3"):
        next(iter(DataLoader(Broken(), num_workers=1)))


def test_cuda_in_a_forked_worker_is_refused_as_in_pytorch(gpu: VirtualGpu) -> None:
    class OnGpu(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, i: int) -> Any:
            torch.cuda.current_device()
            return i

    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        next(iter(DataLoader(OnGpu(), num_workers=1)))


def test_a_thread_runs_on_the_virtual_gpu(gpu: VirtualGpu) -> None:
    found: list[Any] = []

    def work() -> None:
        layer = torch.nn.Linear(64, 64).cuda()
        loss = layer(torch.randn(4, 64, device="cuda")).sum()
        loss.backward()
        found.append((loss.is_cuda, layer.weight.grad is not None))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(True, True)]
    assert torch.cuda.max_memory_allocated() >= 2 * 64 * 64 * 4


def test_many_threads_at_once(gpu: VirtualGpu) -> None:
    def work(n: int) -> tuple[int, ...]:
        total = torch.zeros(n, device="cuda")
        for k in range(1, 20):
            total = total + torch.randn(n, k, device="cuda").sum(1)
        return tuple(total.shape)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(1, 33))) == [(n,) for n in range(1, 33)]
    assert torch.cuda.memory_allocated() == 0


def test_a_subclass_of_thread_keeps_its_run(gpu: VirtualGpu) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            self.device = torch.zeros(1, device="cuda").device

    worker = Worker()
    worker.start()
    worker.join()
    assert worker.device == torch.device("cuda", 0)


def test_one_spawned_process_is_called_in_place(gpu: VirtualGpu) -> None:
    seen: list[tuple[int, int]] = []
    torch.multiprocessing.spawn(lambda rank, x: seen.append((rank, x)), args=(7,), nprocs=1)
    assert seen == [(0, 7)]
    assert "spawn" in gpu.guesses
    with pytest.raises(VirtualGpuError, match="asked for 2 processes"):
        torch.multiprocessing.spawn(print, nprocs=2)
