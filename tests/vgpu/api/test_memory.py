"""`torch.cuda.memory` asks the allocator model."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.virtual_gpu import VirtualGpu

MiB = 1 << 20


def test_every_way_to_ask_gives_the_same_figure(gpu: VirtualGpu) -> None:
    x = torch.empty(5 * MiB, dtype=torch.uint8, device="cuda")
    y = torch.empty(3, device="cuda")
    allocated = 5 * MiB + 512
    stats = torch.cuda.memory_stats()
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.memory_allocated("cuda:0") == allocated
    assert stats["allocated_bytes.all.current"] == allocated
    assert stats["requested_bytes.all.current"] == 5 * MiB + 12
    assert stats["reserved_bytes.all.current"] == torch.cuda.memory_reserved() == 22 * MiB
    assert stats["segment.all.current"] == 2
    assert gpu.memory.memory_allocated() == allocated
    del x, y
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == allocated


def test_peaks_start_again(gpu: VirtualGpu) -> None:
    x = torch.empty(8 * MiB, dtype=torch.uint8, device="cuda")
    del x
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved() > 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_free_memory_is_what_nobody_reserved(gpu: VirtualGpu) -> None:
    before, total = torch.cuda.mem_get_info()
    assert total == gpu.spec.usable_bytes
    x = torch.empty(100 * MiB, dtype=torch.uint8, device="cuda")
    assert before - torch.cuda.mem_get_info()[0] == 100 * MiB
    assert torch.cuda.device_memory_used() == total - torch.cuda.mem_get_info()[0]
    assert f"{torch.cuda.device_memory_used() / MiB:.3f} MB" in torch.cuda.list_gpu_processes()
    del x


def test_the_summary_shows_the_figures(gpu: VirtualGpu) -> None:
    x = torch.empty(100 * MiB, dtype=torch.uint8, device="cuda")
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in text
    assert "102400 KiB" in text.split("Allocated memory")[1].split("\n")[0]
    assert len(torch.cuda.memory_summary(abbreviated=True)) < len(text)
    del x


def test_snapshots_add_up(gpu: VirtualGpu, tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history()
    kept = [torch.empty(n * MiB, dtype=torch.uint8, device="cuda") for n in (1, 3, 30)]
    snapshot = torch.cuda.memory._snapshot()
    segments = snapshot["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]
    held = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    assert held == torch.cuda.memory_allocated() == 34 * MiB
    assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    with (tmp_path / "snapshot.pickle").open("rb") as file:
        assert len(pickle.load(file)["segments"]) == len(segments)
    assert len(torch.cuda.memory_snapshot()) == len(segments)
    torch.cuda.memory._record_memory_history(enabled=None)
    del kept


def test_raw_allocations(gpu: VirtualGpu) -> None:
    address = torch.cuda.caching_allocator_alloc(3 * MiB)
    other = torch.cuda.caching_allocator_alloc(3 * MiB)
    assert address != other
    assert torch.cuda.memory_allocated() == 6 * MiB
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 3 * MiB
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(address)
    torch.cuda.caching_allocator_delete(other)


def test_a_fraction_limits_what_can_be_taken() -> None:
    with VirtualGpu("l4", enforce=True):
        torch.cuda.set_per_process_memory_fraction(0.1)
        assert torch.cuda.get_per_process_memory_fraction() == 0.1
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(1.0)
        x = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        del x


def test_a_fraction_out_of_range_is_refused(gpu: VirtualGpu) -> None:
    with pytest.raises(ValueError, match="fraction"):
        torch.cuda.set_per_process_memory_fraction(1.5)


def test_a_custom_allocator_is_refused_by_name(gpu: VirtualGpu) -> None:
    with pytest.raises(VirtualGpuError, match="CUDAPluggableAllocator"):
        torch.cuda.memory.CUDAPluggableAllocator("alloc.so", "my_malloc", "my_free")


def test_pools_share_memory_and_say_so(gpu: VirtualGpu) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(1000, device="cuda")
    assert torch.cuda.memory_allocated() >= 4000
    assert "mempool" in gpu.guesses
    assert pool.use_count() == 1
    assert torch.cuda.MemPool().id != pool.id
    del x


def test_host_memory_is_not_counted(gpu: VirtualGpu) -> None:
    torch.empty(1000).pin_memory()
    assert torch.cuda.memory_allocated() == 0
    assert dict(torch.cuda.host_memory_stats()) == {}
    assert torch.cuda.memory.get_allocator_backend() == "native"


def test_library_workspaces_can_be_dropped(gpu: VirtualGpu) -> None:
    a = torch.ones(256, 256, device="cuda")
    b = a @ a
    held = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    assert held - torch.cuda.memory_allocated() >= MiB
    del a, b
