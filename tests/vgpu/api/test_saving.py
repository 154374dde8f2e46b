"""Files hold shapes only, say so, never replace real ones, and go away."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.virtual_gpu import VirtualGpu


def state() -> dict[str, Any]:
    model = nn.Linear(1000, 1000).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 1000, device="cuda")).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def test_a_checkpoint_is_small_and_comes_back(gpu: VirtualGpu, tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save(state(), path)
    assert path.stat().st_size < 20_000
    assert gpu.guesses["save"][1] == 1
    loaded = torch.load(path)
    assert loaded["epoch"] == 3
    assert loaded["model"]["weight"].shape == (1000, 1000)
    assert loaded["model"]["weight"].is_cuda
    fresh = nn.Linear(1000, 1000).cuda()
    fresh.load_state_dict(loaded["model"])
    optimizer = torch.optim.AdamW(fresh.parameters())
    optimizer.load_state_dict(loaded["optimizer"])
    assert optimizer.state[fresh.weight]["exp_avg"].is_cuda


def on_host(storage: Any, location: str) -> Any:
    return storage


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, "cuda"),
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        (torch.device("cpu"), "cpu"),
        ({"cuda:0": "cpu"}, "cpu"),
        ({"cuda:0": "cuda:0"}, "cuda"),
        (on_host, "cpu"),
    ],
)
def test_map_location(gpu: VirtualGpu, tmp_path: Path, where: Any, expected: str) -> None:
    torch.save({"x": torch.zeros(3, device="cuda")}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", map_location=where)["x"]
    assert loaded.device.type == expected
    assert isinstance(loaded, FakeTensor)


def test_whole_modules_and_buffers_in_memory(gpu: VirtualGpu, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    assert again(torch.randn(3, 2, device="cuda")).shape == (3, 2)
    assert isinstance(again[0].weight, nn.Parameter)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["0.weight"].device.type == "cpu"


def test_real_files_are_written_and_read_as_ever(gpu: VirtualGpu, tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    torch.save({"rows": torch.arange(5)}, path)
    assert torch.load(path)["rows"].tolist() == [0, 1, 2, 3, 4]
    moved = torch.load(path, map_location="cuda")["rows"]
    assert moved.is_cuda and moved.tolist() == [0, 1, 2, 3, 4]
    assert torch.load(path, mmap=True)["rows"].tolist() == [0, 1, 2, 3, 4]
    assert "save" not in gpu.guesses


def test_a_real_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    torch.save({"weight": torch.full((2, 2), 7.0)}, path)
    before = path.read_bytes()
    with VirtualGpu("l4"):
        torch.save({"weight": torch.zeros(4, 4, device="cuda")}, path)
        assert path.read_bytes() == before
        assert torch.load(path)["weight"].shape == (4, 4)
        torch.save({"weight": torch.zeros(5, 5, device="cuda")}, path)
        assert torch.load(path)["weight"].shape == (5, 5)
    assert path.read_bytes() == before
    assert torch.load(path)["weight"][0, 0] == 7


def test_files_of_shapes_go_away(tmp_path: Path) -> None:
    with VirtualGpu("l4"):
        torch.save(state(), tmp_path / "shapes.pt")
        torch.save({"x": torch.zeros(1)}, tmp_path / "real.pt")
        assert (tmp_path / "shapes.pt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["real.pt"]


def test_a_file_of_shapes_says_so_elsewhere(tmp_path: Path) -> None:
    with VirtualGpu("l4"):
        torch.save({"x": torch.zeros(3, device="cuda")}, tmp_path / "x.pt")
        data = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "kept.pt").write_bytes(data)
    with pytest.raises(Exception, match="shapes_only_tensor"):
        torch.load(tmp_path / "kept.pt")
    with pytest.raises(VirtualGpuError, match="no values"):
        torch.load(tmp_path / "kept.pt", weights_only=False)


def test_a_failed_save_leaves_nothing(gpu: VirtualGpu, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        torch.save({"f": lambda: None, "x": torch.zeros(1, device="cuda")}, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_or_folder_is_pytorchs_error(gpu: VirtualGpu, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "none.pt")
    with pytest.raises((OSError, RuntimeError)):
        torch.save(state(), tmp_path / "no" / "folder.pt")


def test_a_default_device_is_where_files_go(gpu: VirtualGpu, tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(3)}, tmp_path / "x.pt")
    with torch.device("cuda"):
        assert torch.load(tmp_path / "x.pt")["x"].is_cuda


@pytest.mark.parametrize("write", [torch.save, torch.serialization.save])
def test_saving_is_reached_by_every_name(write: Callable[..., None], tmp_path: Path) -> None:
    name = write.__module__
    with VirtualGpu("l4"):
        import torch.serialization as module

        assert module.save is torch.save, name
