from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.gpus import catalogue, context_bytes, find
from ebbtide.gpus.context import is_lazy, observations
from ebbtide.units import MiB

NVIDIA = sorted(key for key, gpu in catalogue().items() if gpu.vendor == "NVIDIA")
VERSIONS = [(1, 3), (1, 10), (1, 12), (1, 13), (2, 0), (2, 6), (2, 13)]


def test_every_sighting_says_who_saw_it_and_when() -> None:
    assert len(observations()) >= 12
    for seen in observations():
        assert seen.source
        assert seen.url.startswith("https://")
        assert date(2015, 1, 1) < seen.date < date(2027, 1, 1)
        assert seen.loading in ("lazy", "eager")
        assert seen.after in ("init", "work")
        assert 50 * MiB < seen.context_bytes < 2048 * MiB
        assert seen.gpu is None or seen.gpu in catalogue()


def test_a_sighting_that_is_not_used_says_why() -> None:
    for seen in observations():
        assert seen.used != bool(seen.note)
        assert seen.used <= (seen.gpu is not None)


def test_loading_goes_with_the_versions() -> None:
    for seen in observations():
        if seen.torch is not None:
            assert is_lazy(seen.torch) == (seen.loading == "lazy"), seen.source


@pytest.mark.parametrize("seen", [one for one in observations() if one.used], ids=str)
def test_a_sighting_lies_in_the_range_for_its_gpu(seen: object) -> None:
    assert hasattr(seen, "gpu")
    one = next(other for other in observations() if other is seen)
    assert one.gpu is not None
    version = one.torch or ((2, 9) if one.loading == "lazy" else (1, 9))
    found = context_bytes(find(one.gpu), version)
    assert found.low - 1 <= one.context_bytes <= found.high + 1


def test_the_published_contexts_of_old_torch_come_back() -> None:
    # huggingface/transformers, perf_train_gpu_one: 1343 MiB with 2 MiB of them cached.
    v100 = context_bytes(find("v100-16gb"), (1, 10), driver=460)
    assert v100.likely == pytest.approx(1341 * MiB, rel=0.001)
    # pytorch/pytorch#28394: 1007.25 MiB, 2 MiB of them cached.
    titan = context_bytes(find("titan-v"), (1, 3))
    assert titan.likely == pytest.approx(1005.25 * MiB, rel=0.001)


def test_lazy_loading_takes_less() -> None:
    # pytorch/pytorch#86509 saw 274 MiB in place of 636.
    for key in ("v100-16gb", "rtx-3090", "a100-40gb", "rtx-2080-ti", "t4"):
        gpu = find(key)
        assert context_bytes(gpu, (2, 6)).likely < context_bytes(gpu, (1, 12)).likely


@pytest.mark.parametrize(
    ("version", "driver", "lazy"),
    [
        ((1, 12), None, False),
        ((1, 13), None, True),
        ((2, 13), None, True),
        ((2, 0), 510, False),
        ((2, 0), 515, True),
        ((1, 12), 580, False),
    ],
)
def test_lazy_loading_needs_torch_and_driver(
    version: tuple[int, int], driver: int | None, lazy: bool
) -> None:
    assert is_lazy(version, driver) is lazy
    gpu = find("rtx-3090")
    as_if = context_bytes(gpu, (2, 13) if lazy else (1, 12))
    assert context_bytes(gpu, version, driver).low == as_if.low


def test_more_processors_hold_more_memory() -> None:
    # llama.cpp#23604: "the cost scales with SM count".
    for smaller, larger in (("rtx-4060", "rtx-4090"), ("rtx-3060", "rtx-3090"), ("t4", "l4")):
        assert context_bytes(find(smaller)).low < context_bytes(find(larger)).low


def test_turing_keeps_fewer_threads_than_its_processors_suggest() -> None:
    t4, a2 = find("t4"), find("a2")
    assert t4.sm_count == 4 * a2.sm_count
    # 1024 threads a processor in place of 1536.
    assert context_bytes(t4).low == pytest.approx(context_bytes(a2).low * 4 * 1024 / 1536, rel=1e-6)


def test_amd_gets_the_span_of_all_sightings() -> None:
    lazy = [seen.context_bytes for seen in observations() if seen.loading == "lazy"]
    found = context_bytes(find("mi300x"))
    assert (found.low, found.high) == (min(lazy), max(lazy))
    assert found.low < found.likely < found.high


@given(st.sampled_from(NVIDIA), st.sampled_from(VERSIONS), st.sampled_from([None, 460, 550]))
def test_a_context_is_some_hundred_megabytes(
    key: str, version: tuple[int, int], driver: int | None
) -> None:
    found = context_bytes(find(key), version, driver)
    assert 10 * MiB < found.low <= found.likely <= found.high < 2048 * MiB
    assert found == context_bytes(find(key), version, driver)
