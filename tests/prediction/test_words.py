from __future__ import annotations

import pytest

from ebbtide.gpus import catalogue
from ebbtide.prediction.words import article, gpu_label


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("l4", "L4"),
        ("a100-80gb", "A100 80 GB"),
        ("v100-pcie-16gb", "V100 PCIe 16 GB"),
        ("rtx-4090", "RTX 4090"),
        ("rtx-2080-ti", "RTX 2080 Ti"),
        ("titan-v", "Titan V"),
        ("mi300x", "MI300X"),
    ],
)
def test_label(key: str, label: str) -> None:
    assert gpu_label(key) == label


def test_no_two_gpus_have_the_same_label() -> None:
    labels = [gpu_label(key) for key in catalogue()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("name", "word"),
    [("L4", "an"), ("T4", "a"), ("A100", "an"), ("H100", "an"), ("RTX 4090", "an"), ("V100", "a")],
)
def test_article(name: str, word: str) -> None:
    assert article(name) == word
