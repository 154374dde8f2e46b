"""Profilers see the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ebbtide.vgpu.virtual_gpu import VirtualGpu


def step() -> None:
    with record_function("step"):
        torch.nn.Linear(8, 8).cuda()(torch.randn(1, 8, device="cuda")).sum().backward()


@pytest.mark.parametrize(
    ("activities", "guessed"),
    [
        (None, False),
        ([ProfilerActivity.CPU], False),
        ([ProfilerActivity.CPU, ProfilerActivity.CUDA], True),
        ([ProfilerActivity.CUDA], True),
    ],
)
def test_a_profile_of_the_host(
    gpu: VirtualGpu, tmp_path: Path, activities: list[ProfilerActivity] | None, guessed: bool
) -> None:
    with profile(activities=activities, record_shapes=True) as found:
        step()
    assert any(event.key == "step" for event in found.key_averages())
    assert "step" in found.key_averages().table(row_limit=50)
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    assert (tmp_path / "trace.json").stat().st_size > 0
    assert ("profiler" in gpu.guesses) is guessed


def test_the_older_profiler(gpu: VirtualGpu) -> None:
    with torch.autograd.profiler.profile(use_device="cuda") as found:
        step()
    assert any(event.name == "step" for event in found.function_events)
    assert gpu.guesses["profiler"][1] >= 1
    with torch.autograd.profiler.emit_nvtx():
        step()


def test_the_build_tells_of_cuda(gpu: VirtualGpu) -> None:
    assert "CUDA Runtime" in torch.__config__.show()
    assert torch.__version__ in torch.__config__.show()
