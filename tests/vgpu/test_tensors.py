from __future__ import annotations

import pytest

from ebbtide.vgpu.tensors import TensorMeta


@pytest.mark.parametrize(
    ("shape", "numel"), [((), 1), ((0,), 0), ((3, 0, 2), 0), ((4, 5), 20), ((2**20, 2**20), 2**40)]
)
def test_elements_and_bytes(shape: tuple[int, ...], numel: int) -> None:
    meta = TensorMeta(shape, (1,) * len(shape), "float16", 2)
    assert meta.numel == numel
    assert meta.nbytes == 2 * numel


def test_equal_metadata_is_one_key() -> None:
    one = TensorMeta((2, 3), (3, 1), "float32", 4)
    assert {one: "seen"}[TensorMeta((2, 3), (3, 1), "float32", 4)] == "seen"
    assert one != TensorMeta((2, 3), (1, 2), "float32", 4)
    assert one != TensorMeta((2, 3), (3, 1), "int32", 4)
