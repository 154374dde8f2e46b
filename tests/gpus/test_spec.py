from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import date

import pytest

from ebbtide.gpus import Gpu, Source, catalogue, find


@pytest.mark.parametrize(
    ("gpu", "dtype", "same_as"),
    [
        ("t4", "bfloat16", "float32"),  # Turing has no bfloat16 units
        ("t4", "tf32", "float32"),
        ("a100-80gb", "float8", "float16"),
        ("a100-80gb", "float8_e4m3fn", "float16"),
        ("l4", "float8_e5m2", "float8"),
        ("v100-16gb", "int8", "float32"),
        ("p40", "float16", "float32"),  # cuBLAS computes half there in single
        ("l4", "uint8", "int8"),
        ("l4", "complex64", "float32"),
        ("h100-80gb", "complex128", "float64"),
        ("l4", "int64", "float32"),
        ("l4", "bool", "float32"),
    ],
)
def test_a_dtype_without_units_is_computed_in_the_next_wider_one(
    gpu: str, dtype: str, same_as: str
) -> None:
    spec = find(gpu)
    assert spec.rate(dtype) == spec.flops[same_as] > 0


def test_a_dtype_with_units_has_its_own_rate() -> None:
    h100 = find("h100-80gb")
    assert h100.rate("float32") == 67e12
    assert h100.rate("tf32") == 494.5e12
    assert h100.rate("bfloat16") == 989e12
    assert h100.rate("float8") == 1978e12


def test_a_gpu_of_which_only_memory_is_known_has_no_rate() -> None:
    assert find("mi300x").rate("float16") == 0.0


def test_every_dtype_comes_to_an_end_on_every_gpu() -> None:
    for gpu in catalogue().values():
        for dtype in ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8", "x"):
            assert (gpu.rate(dtype) > 0) == (gpu.vendor == "NVIDIA")


def test_a_spec_cannot_be_changed_and_can_key_a_dictionary() -> None:
    gpu = find("l4")
    with pytest.raises(FrozenInstanceError):
        gpu.memory_bytes = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        gpu.flops["float32"] = 1.0  # type: ignore[index]
    assert {gpu: 1}[find("l4")] == 1


def test_a_spec_of_ones_own_needs_no_catalogue() -> None:
    own = replace(find("l4"), key="mine", usable_bytes=10**9)
    assert own.usable_bytes == 10**9
    assert own != find("l4")
    assert own.rate("float16") == find("l4").rate("float16")


def test_a_source_says_whether_its_figure_is_derived() -> None:
    document = Source(title="A datasheet", url="https://example.org", date=date(2024, 1, 1))
    rule = Source(title="Derived: from a datasheet", url="", date=date(2024, 1, 1))
    assert not document.derived
    assert rule.derived


def test_a_gpu_is_made_by_naming_every_field() -> None:
    with pytest.raises(TypeError):
        Gpu("l4", "NVIDIA L4")  # type: ignore[misc]
