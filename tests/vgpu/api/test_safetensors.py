"""safetensors files of shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("safetensors")

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ebbtide.vgpu.api.safetensors as ours
from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_shapes_come_back(gpu: VirtualGpu, tmp_path: Path) -> None:
    import safetensors.torch as st

    path = tmp_path / "model.safetensors"
    tensors = {
        "a": torch.zeros(1000, 1000, device="cuda", dtype=torch.bfloat16),
        "b": torch.zeros(3, dtype=torch.int64, device="cuda"),
    }
    st.save_file(tensors, path, metadata={"format": "pt"})
    assert path.stat().st_size < 500
    loaded = st.load_file(path)
    assert loaded["a"].shape == (1000, 1000) and loaded["a"].dtype is torch.bfloat16
    assert loaded["b"].device.type == "cpu"
    assert st.load_file(path, device="cuda")["a"].is_cuda
    assert gpu.guesses["save"][1] == 1


def test_open_files_give_slices_and_metadata(gpu: VirtualGpu, tmp_path: Path) -> None:
    import safetensors

    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"w": torch.zeros(6, 4, device="cuda")}, path, {"format": "pt"})
    with safetensors.safe_open(path, framework="pt", device=0) as file:
        assert list(file.keys()) == list(file.offset_keys()) == ["w"]
        assert file.metadata() == {"format": "pt"}
        part = file.get_slice("w")
        assert (part.get_shape(), part.get_dtype()) == ([6, 4], "F32")
        assert part[:2].shape == (2, 4)
        assert file.get_tensor("w").is_cuda


def test_real_files_stay_real(gpu: VirtualGpu, tmp_path: Path) -> None:
    import safetensors.torch as st

    path = tmp_path / "real.safetensors"
    st.save_file({"x": torch.arange(4)}, path)
    assert st.load_file(path)["x"].tolist() == [0, 1, 2, 3]
    moved = st.load_file(path, device="cuda:0")["x"]
    assert moved.is_cuda and moved.tolist() == [0, 1, 2, 3]
    assert "save" not in gpu.guesses


def test_a_real_file_is_not_replaced_and_shapes_go_away(tmp_path: Path) -> None:
    real, shapes = tmp_path / "real.safetensors", tmp_path / "shapes.safetensors"
    save_file({"x": torch.full((2,), 5.0)}, real)
    before = real.read_bytes()
    with VirtualGpu("l4"):
        import safetensors.torch as st

        st.save_file({"x": torch.zeros(3, device="cuda")}, real)
        st.save_file({"x": torch.zeros(3, device="cuda")}, shapes)
        assert st.load_file(real)["x"].shape == (3,)
    assert real.read_bytes() == before
    assert not shapes.exists()
    assert load_file(real)["x"].tolist() == [5.0, 5.0]


def test_elsewhere_a_file_of_shapes_is_empty_and_says_why(tmp_path: Path) -> None:
    ours._write({"w": torch.zeros(2, 3)}, str(tmp_path / "kept.safetensors"), None)
    with safe_open(tmp_path / "kept.safetensors", framework="pt") as file:
        assert list(file.keys()) == []
        assert "ebbtide_shapes_only" in file.metadata()


@pytest.mark.parametrize("dtype", sorted(ours._NAMES, key=str))
def test_every_dtype_has_safetensors_own_name(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, dtype=dtype)}, tmp_path / "x.safetensors")
    assert ours.header_of(tmp_path / "x.safetensors")["x"]["dtype"] == ours._NAMES[dtype]


def test_other_files_hold_no_shapes(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"\x05\x00\x00\x00\x00\x00\x00\x00{}")
    assert ours.shapes_in(tmp_path / "junk") is None
    assert ours.shapes_in(tmp_path / "missing") is None
