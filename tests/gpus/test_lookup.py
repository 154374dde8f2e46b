from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UnknownGpuError
from ebbtide.gpus import candidates, catalogue, find
from ebbtide.units import GiB


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("l4", "l4"),
        ("L4", "l4"),
        ("NVIDIA L4", "l4"),
        ("  nvidia_l4 ", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("A100 80GB", "a100-80gb"),
        ("A100 80 GB", "a100-80gb"),
        ("a100-80g", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("80GB A100 PCIe", "a100-pcie-80gb"),
        ("RTX4090", "rtx-4090"),
        ("rtx 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTX 2070 SUPER", "rtx-2070-super"),
        ("rtx2070super", "rtx-2070-super"),
        ("2080Ti", "rtx-2080-ti"),
        ("GTX1080Ti", "gtx-1080-ti"),
        ("4060 ti 16gb", "rtx-4060-ti-16gb"),
        ("h100 sxm", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("H100-96GB", "h100-96gb"),
        ("H20-96GB", "h20-96gb"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("Titan V", "titan-v"),
        ("Tesla K80", "k80"),
        ("A6000", "rtx-a6000"),
        ("RTX A6000", "rtx-a6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_usual_spellings(name: str, key: str) -> None:
    assert find(name).key == key


def test_every_key_name_and_alias_finds_its_gpu() -> None:
    for gpu in catalogue().values():
        for name in (gpu.key, gpu.name, *gpu.aliases):
            assert find(name) is gpu, name
            assert find(name.upper()) is gpu, name


@pytest.mark.parametrize(
    ("name", "several"),
    [
        ("a100", ["a100-40gb", "a100-pcie-40gb", "a100-80gb", "a100-pcie-80gb"]),
        ("H100", ["h100-80gb", "h100-96gb", "h100-pcie", "h100-nvl"]),
        ("Tesla V100", ["v100-16gb", "v100-32gb", "v100-pcie-16gb", "v100-pcie-32gb"]),
        ("RTX 4060 Ti", ["rtx-4060-ti-8gb", "rtx-4060-ti-16gb"]),
        ("RTX 6000", ["quadro-rtx-6000", "rtx-6000-ada", "rtx-pro-6000", "rtx-pro-6000-server"]),
    ],
)
def test_a_name_of_several_says_which_there_are(name: str, several: list[str]) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find(name)
    assert all(key in str(caught.value) for key in several)
    assert repr(name) in str(caught.value)
    assert [gpu.key for gpu in candidates(name)] == several


@pytest.mark.parametrize(
    ("name", "near"), [("h1000", "h100"), ("rtx 4095", "rtx-4090"), ("a1000", "a100"), ("l5", "l4")]
)
def test_an_unknown_name_offers_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownGpuError, match="Did you mean") as caught:
        find(name)
    assert near in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", "  ", "nvidia", "zzzzzzzzzz", "🚀"])
def test_a_name_near_nothing_points_to_the_list(name: str) -> None:
    with pytest.raises(UnknownGpuError, match="ebbtide gpus"):
        find(name)


def test_part_of_a_word_is_no_name() -> None:
    # "a4" must not be an A4000, nor "l" an L4.
    for name in ("a4", "l", "409", "h10"):
        assert candidates(name) == []


def test_a_slice_of_a_gpu_is_not_the_gpu() -> None:
    with pytest.raises(UnknownGpuError):
        find("NVIDIA A100-SXM4-40GB MIG 1g.10gb")


@pytest.mark.parametrize(
    ("name", "gib", "keys"),
    [
        ("V100", 16, ["v100-16gb", "v100-pcie-16gb"]),
        ("A100", 80, ["a100-80gb", "a100-pcie-80gb"]),
        ("A100", 20, []),
        ("RTX4000", 8, ["quadro-rtx-4000"]),
        ("RTX 4000", 20, ["rtx-4000-ada"]),
        ("RTX 3080", 10, ["rtx-3080"]),
        ("RTX 3080", 12, ["rtx-3080-12gb"]),
        ("L4", 24, ["l4"]),
        ("L4", 48, []),
    ],
)
def test_the_memory_decides_between_gpus_of_one_name(name: str, gib: int, keys: list[str]) -> None:
    assert [gpu.key for gpu in candidates(name, gib * GiB)] == keys


def test_memory_may_be_decimal_binary_or_what_the_driver_shows() -> None:
    for size in (24 * 10**9, 24 * GiB, find("l4").usable_bytes):
        assert [gpu.key for gpu in candidates("L4", size)] == ["l4"]


@given(st.text(max_size=30))
def test_any_text_finds_a_gpu_or_says_why_not(name: str) -> None:
    try:
        found = find(name)
    except UnknownGpuError as error:
        assert repr(name) in str(error)
    else:
        assert found in catalogue().values()


@given(st.sampled_from(sorted(catalogue())), st.sampled_from(["{}", "NVIDIA {}", " {} "]))
def test_separators_and_case_do_not_matter(key: str, pattern: str) -> None:
    for written in (key, key.replace("-", " "), key.replace("-", "_"), key.upper()):
        assert find(pattern.format(written)).key == key
