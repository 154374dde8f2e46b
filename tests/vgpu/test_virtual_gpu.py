"""The virtual GPU as a whole: on, off, again, after errors, and the process as before."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.errors import EbbtideError, VirtualGpuError
from ebbtide.gpus import find
from ebbtide.vgpu import unlock, verified
from ebbtide.vgpu.virtual_gpu import VirtualGpu, torch_release


def _cpu_training() -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
    model(torch.randn(2, 3, 8, 8))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3, 8, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def _gpu_training() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cuda"):
        loss = model(torch.randn(2, 4, device="cuda")).sum()
    loss.backward()
    optimizer.step()


def _is_off() -> bool:
    # Whoever has no GPU sees none again, and new parameters are real.
    return not torch.cuda.is_available() and not isinstance(nn.Linear(1, 1).weight, FakeTensor)


def test_a_cpu_training_is_the_same_afterwards() -> None:
    before = _cpu_training()
    with VirtualGpu("l4"):
        _gpu_training()
    assert _is_off()
    assert all(torch.equal(a, b) for a, b in zip(before, _cpu_training(), strict=True))


@pytest.mark.parametrize("where", ["setup", "forward", "backward", "hook"])
def test_an_error_leaves_torch_as_it_was(where: str) -> None:
    before = _cpu_training()

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
            if where == "forward":
                raise KeyError(where)
            return data * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            if where == "backward":
                raise KeyError(where)
            return gradient

    def hook(_: torch.Tensor) -> None:
        if where == "hook":
            raise KeyError(where)

    with pytest.raises(KeyError, match=where), VirtualGpu("l4"):
        if where == "setup":
            raise KeyError(where)
        weight = torch.ones(3, device="cuda", requires_grad=True)
        weight.register_hook(hook)
        Fails.apply(weight * 2).sum().backward()
    assert _is_off()
    assert all(torch.equal(a, b) for a, b in zip(before, _cpu_training(), strict=True))


def test_a_second_one_starts_afresh() -> None:
    peaks = []
    for _ in range(2):
        with VirtualGpu("l4") as gpu:
            assert torch.cuda.memory_allocated() == 0
            _gpu_training()
            peaks.append(torch.cuda.max_memory_allocated())
            assert gpu.tape.phases[0] == ("setup", 0)
    assert peaks[0] == peaks[1] > 0


def test_only_one_at_a_time() -> None:
    with VirtualGpu("l4"):
        with pytest.raises(VirtualGpuError, match="on already"), VirtualGpu("t4"):
            pass
        assert torch.cuda.get_device_name() == "NVIDIA L4"
        assert torch.ones(1, device="cuda").is_cuda
    assert _is_off()


def test_it_is_named_or_described() -> None:
    with VirtualGpu(find("h100-80gb")) as gpu:
        assert gpu.spec.key == "h100-80gb"
        assert torch.cuda.get_device_capability() == (9, 0)


def test_an_unknown_name_and_a_gpu_without_cuda() -> None:
    with pytest.raises(EbbtideError, match="l4"):
        VirtualGpu("l5")
    with pytest.raises(VirtualGpuError, match="no CUDA device"):
        VirtualGpu("mi300x")
    assert _is_off()


def test_the_release_of_torch() -> None:
    major, minor = torch_release()
    assert torch.__version__.startswith(f"{major}.{minor}.")


def test_kernels_follow_another_release() -> None:
    with VirtualGpu("l4", torch_version=(2, 4)) as gpu:
        assert gpu.kernels.context.torch_version == (2, 4)
        _gpu_training()


def test_guesses_are_counted(gpu: VirtualGpu) -> None:
    gpu.guess("item", "first text")
    gpu.guess("item", "second text")
    assert gpu.guesses == {"item": ["first text", 2]}


def test_values_and_fakes(gpu: VirtualGpu) -> None:
    there = torch.tensor([1, 2], device="cuda")
    assert gpu.value_of(there).tolist() == [1, 2]
    fake = gpu.make_fake(torch.ones(2, 3).t(), "cuda")
    assert fake.is_cuda
    assert (tuple(fake.shape), fake.stride()) == ((3, 2), (1, 3))
    assert not gpu.make_fake(torch.ones(2)).is_cuda


def test_a_large_model_costs_no_memory(gpu: VirtualGpu) -> None:
    model = nn.Sequential(*(nn.Linear(1 << 15, 1 << 15, bias=False) for _ in range(4)))
    model.cuda()
    assert torch.cuda.memory_allocated() == 4 * 4 << 30


def test_fakes_of_before_are_dead_afterwards_but_harmless() -> None:
    with VirtualGpu("l4"):
        kept = torch.ones(3, device="cuda")
    assert isinstance(kept, FakeTensor)
    del kept
    gc.collect()
    with VirtualGpu("l4") as gpu:
        assert gpu.mode.storages.live_rows() == []


# -- the self-test comes first


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """A user whose torch has not been tried yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(verified.SWITCH, raising=False)
    return tmp_path


def test_the_self_test_passes_once_and_is_remembered(
    untested: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified.ensure()
    mark = verified.mark_path()
    assert mark.parent.parent == untested
    assert mark.read_text() == "passed\n"
    assert torch.__version__ in mark.name
    monkeypatch.setattr(verified, "_MODULE", "no_such_module")
    verified.ensure()  # not run again
    assert [path.name for path in mark.parent.iterdir()] == [mark.name]


def test_a_failing_self_test_is_a_clear_error(
    untested: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "_MODULE", "ebbtide.no_such_module")
    with pytest.raises(VirtualGpuError, match=r"self-test failed.*no_such_module.*2\.13\.0"):
        VirtualGpu("l4").__enter__()
    assert VirtualGpu._active is None
    assert not unlock._State.opened
    assert list(untested.iterdir()) == []


def test_a_death_is_told_with_its_step() -> None:
    assert verified._reason(-11, "locks\nautocast\n", "") == (
        "the process ended by SIGSEGV at: autocast"
    )
    assert verified._reason(1, "copies\n", "Trace\nValueError: x\n") == "at: copies: ValueError: x"
    assert verified._reason(3, "", "") == "at: the start: exit code 3"


def test_another_torch_is_tried_again(untested: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = verified.mark_path()
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert verified.mark_path() != mark


def test_the_switch_and_a_real_gpu_need_no_test(
    untested: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "_MODULE", "ebbtide.no_such_module")
    monkeypatch.setattr(verified, "needed", lambda: False)
    verified.ensure()
    monkeypatch.setattr(verified, "needed", lambda: True)
    monkeypatch.setenv(verified.SWITCH, "0")
    verified.ensure()


def test_no_place_for_the_mark_is_no_error(untested: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (untested / "ebbtide").write_text("a file where a folder should be")
    verified._remember(verified.mark_path())
    assert (untested / "ebbtide").is_file()
