"""The self-test says its steps, and fails where something is wrong."""

from __future__ import annotations

import pytest
import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu import selftest, unlock
from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_it_passes_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_SELFTEST", "0")
    assert selftest.main() == 0
    lines = capsys.readouterr().out.splitlines()
    for step in ("the locks open and close", "a training step", "autocast", "attention", "copies"):
        assert step in lines
    assert "the CPU after attention" in lines
    assert torch.__version__ in lines[-1]


def test_with_a_real_gpu_there_is_nothing_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlock, "needed", lambda: False)
    assert selftest.main() == 0
    assert "sees a GPU" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, _ in selftest._ON_THE_GPU])
def test_each_step_passes_alone(gpu: VirtualGpu, name: str) -> None:
    dict(selftest._ON_THE_GPU)[name](gpu)


def test_a_changed_cpu_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = selftest.steps()
    names = {}
    for name, step in steps:
        names[name] = step
        if name.startswith("the CPU after"):
            break
    step = names["the CPU after a training step"]
    step()
    monkeypatch.setattr(selftest, "_cpu_step", lambda: [torch.zeros(1)] * 4)
    with pytest.raises(VirtualGpuError, match="step on the CPU has changed"):
        step()


def test_wrong_autocast_is_noticed(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(torch.autocast):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__("cuda", enabled=False)

    monkeypatch.setattr(torch, "autocast", Off)
    with pytest.raises(VirtualGpuError, match=r"autocast gave torch.float32"):
        selftest._autocast(gpu)


def test_lost_memory_is_noticed(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.memory, "memory_allocated", lambda: 0)
    with pytest.raises(VirtualGpuError, match="was not counted"):
        selftest._frees(gpu)
