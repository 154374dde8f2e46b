"""`torch.cuda`'s memory figures: a replay of the tape, when somebody asks."""

from __future__ import annotations

import pytest
import torch

from ebbtide.errors import EbbtideError
from ebbtide.gpus import context_bytes, find
from ebbtide.vgpu.allocator import AllocatorConfig, TieBreak
from ebbtide.vgpu.memory import LiveMemory
from ebbtide.vgpu.storages import Storages
from ebbtide.vgpu.tape import Tape
from ebbtide.vgpu.virtual_gpu import VirtualGpu

MIB = 1 << 20


@pytest.fixture
def live() -> LiveMemory:
    tape = Tape()
    return LiveMemory(
        tape, Storages(tape), total_bytes=100 * MIB, other_bytes=10 * MIB,
        config=AllocatorConfig(), tie_break=TieBreak.ADDRESS, enforce=False,
    )  # fmt: skip


def test_figures_follow_the_tape(live: LiveMemory) -> None:
    tape = live._tape
    row = tape.alloc(1000, 1000, 1000)
    assert live.memory_allocated() == 1024
    assert live.memory_reserved() == 2 * MIB  # the small pool's segment
    tape.free(row)
    assert live.memory_allocated() == 0
    assert live.memory_reserved() == 2 * MIB
    assert live.max_memory_allocated() == 1024
    live.empty_cache()
    assert live.memory_reserved() == 0
    assert live.max_memory_reserved() == 2 * MIB
    live.reset_peak()
    assert live.max_memory_reserved() == 0


def test_free_bytes_are_what_nobody_has(live: LiveMemory) -> None:
    assert live.free_bytes() == 90 * MIB
    live._tape.alloc(30 * MIB, 30 * MIB, 30 * MIB)
    assert live.free_bytes() == 60 * MIB
    live._tape.alloc(90 * MIB, 90 * MIB, 90 * MIB)
    assert live.free_bytes() == 0  # more is taken than there is: nothing is held here


def test_events_are_replayed_once(live: LiveMemory) -> None:
    live._tape.alloc(512, 512, 512)
    assert [live.memory_allocated() for _ in range(3)] == [512] * 3
    assert live.stats()["allocation"]["all"]["allocated"] == 1
    assert sum(segment["total_size"] for segment in live.snapshot()) == 2 * MIB


def test_memory_of_another_stream_is_not_taken(live: LiveMemory) -> None:
    tape = live._tape
    tape.stream = 5
    row = tape.alloc(4 * MIB, 4 * MIB, 4 * MIB)
    tape.free(row)
    tape.stream = 0
    tape.alloc(4 * MIB, 4 * MIB, 4 * MIB)
    assert live.memory_reserved() == 40 * MIB


def test_a_trainings_peak_by_hand(gpu: VirtualGpu) -> None:
    data = torch.empty(1 << 20, device="cuda")  # 4 MiB
    out = data * 2
    assert torch.cuda.memory_allocated() == 8 * MIB
    del out
    out = data + 1 + 1  # both sums are there for a moment
    assert torch.cuda.max_memory_allocated() == 12 * MIB
    assert torch.cuda.memory_reserved() == 20 * MIB
    del data, out
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_the_context_is_not_free(gpu: VirtualGpu) -> None:
    free, total = torch.cuda.mem_get_info()
    assert total == find("l4").usable_bytes
    assert total - free == context_bytes(find("l4"), (2, 13)).likely


def test_a_limit_is_held_with_pytorchs_words() -> None:
    with VirtualGpu("t4", enforce=True) as gpu:
        kept = torch.empty(1 << 30, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate"):
            torch.empty(20 << 30, device="cuda")
        assert gpu.memory.failures == 1
        assert torch.cuda.memory_allocated() == 4 << 30
        # The program goes on with less.
        assert torch.empty(1 << 20, device="cuda").is_cuda
        del kept
        assert torch.cuda.memory_allocated() == 0


def test_without_a_limit_what_does_not_fit_is_measured(gpu: VirtualGpu) -> None:
    data = torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 100 << 30
    assert data.is_cuda


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with VirtualGpu("l4"):
        data = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 20 * MIB
        del data
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:4")
    with VirtualGpu("l4"):
        data = torch.empty(1200 << 10, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 1280 << 10
        del data


def test_bad_settings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:abc")
    with pytest.raises((EbbtideError, ValueError, RuntimeError)):
        VirtualGpu("l4")
