from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.units import GiB, MiB
from ebbtide.vgpu.allocator import AllocatorConfig
from ebbtide.vgpu.allocator.config import ENVIRONMENT
from ebbtide.vgpu.allocator.sizes import LARGE_SEGMENT, UNLIMITED

# What torch's own parser is asked about too. These keys are common to all devices, so that
# a CPU build knows them; those of CUDA alone it passes over.
COMMON = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:64",
    " max_split_size_mb : 64 ",
    "max_split_size_mb:+64",
    "max_split_size_mb:64abc",
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_split_size_mb:",
    "max_split_size_mb",
    "max_non_split_rounding_mb:20",
    "max_non_split_rounding_mb:5",
    "large_segment_size_mb:11",
    "large_segment_size_mb:10",
    "large_segment_size_mb:64,max_split_size_mb:64",
    "large_segment_size_mb:64,max_split_size_mb:63",
    "max_split_size_mb:63,large_segment_size_mb:64",
    "large_segment_size_mb:32,max_non_split_rounding_mb:31",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:1e-3",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:2",
    "garbage_collection_threshold:-0.5",
    "garbage_collection_threshold:much",
    "expandable_segments:True",
    "expandable_segments:False",
    "expandable_segments:true",
    "expandable_segments:1",
    "expandable_segments:True max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[256:0]",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[200:4]",
    "roundup_power2_divisions:[256:1",
    "pinned_use_background_threads:True",
    "pinned_use_background_threads:yes",
    "pinned_max_round_threshold_mb:8",
    "pinned_max_cached_size_mb:8",
    "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.9",
    "max_split_size_mb:64,",
    "max_split_size_mb:64,,",
    ",",
]


@pytest.fixture(scope="module")
def torchs_verdicts() -> dict[str, str | None]:
    """For each text, what torch's parser complains of, None if it takes it."""
    program = """
import json, sys, torch
verdicts = {}
for text in json.load(sys.stdin):
    # 20 is the default; the bound of other settings follows this one and is never reset.
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
    try:
        torch._C._accelerator_setAllocatorSettings(text)
        verdicts[text] = None
    except (ValueError, RuntimeError, OverflowError) as error:
        verdicts[text] = str(error).splitlines()[0]
print(json.dumps(verdicts))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(COMMON),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("text", COMMON)
def test_takes_what_torch_takes(text: str, torchs_verdicts: dict[str, str | None]):
    complaint = torchs_verdicts[text]
    if complaint is None:
        AllocatorConfig.parse(text)
    else:
        with pytest.raises(UsageError):
            AllocatorConfig.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:19",
        "max_non_split_rounding_mb:5",
        "large_segment_size_mb:10",
        "garbage_collection_threshold:2",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:3]",
        "roundup_power2_divisions:[200:4]",
    ],
)
def test_complains_in_torchs_words(text: str, torchs_verdicts: dict[str, str | None]):
    with pytest.raises(UsageError) as caught:
        AllocatorConfig.parse(text)
    assert str(caught.value).strip() == str(torchs_verdicts[text]).strip()


def test_nothing_is_configured_by_default():
    config = AllocatorConfig.parse("")
    assert config == AllocatorConfig()
    assert config.max_split_size == UNLIMITED
    assert config.max_non_split_rounding_size == LARGE_SEGMENT == 20 * MiB
    assert not config.expandable_segments
    assert config.backend == "native"
    assert config.per_process_memory_fraction == 1.0


def test_every_setting_arrives():
    config = AllocatorConfig.parse(
        "backend:cudaMallocAsync,max_split_size_mb:128,max_non_split_rounding_mb:40,"
        "garbage_collection_threshold:0.75,expandable_segments:True,"
        "per_process_memory_fraction:0.5,release_lock_on_cudamalloc:True,"
        "graph_capture_record_stream_reuse:True,throw_on_cudamalloc_oom:True,"
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,"
        "pinned_use_background_threads:True,pinned_reserve_segment_size_mb:4,"
        "pinned_free_catch_all:True,pinned_max_round_threshold_mb:16,"
        "pinned_max_cached_size_mb:32,roundup_power2_divisions:8"
    )
    assert config.backend == "cudaMallocAsync"
    assert config.max_split_size == 128 * MiB
    assert config.max_non_split_rounding_size == 40 * MiB
    assert config.garbage_collection_threshold == 0.75
    assert config.expandable_segments
    assert config.per_process_memory_fraction == 0.5
    assert config.release_lock_on_cudamalloc
    assert config.graph_capture_record_stream_reuse
    assert config.throw_on_cudamalloc_oom
    assert config.pinned_use_cuda_host_register
    assert config.pinned_num_register_threads == 8
    assert config.pinned_use_background_threads
    assert config.pinned_reserve_segment_size_mb == 4
    assert config.pinned_free_catch_all
    assert config.pinned_max_round_threshold_mb == 16
    assert config.pinned_max_cached_size_mb == 32
    assert config.roundup_power2_divisions == (8,) * 16


def test_hip_names_mean_the_same():
    config = AllocatorConfig.parse(
        "release_lock_on_hipmalloc:True,pinned_use_hip_host_register:True"
    )
    assert config.release_lock_on_cudamalloc
    assert config.pinned_use_cuda_host_register


@pytest.mark.parametrize(
    ("text", "table"),
    # As torch 2.14.1 reports them in a snapshot (bench/allocator_oracle).
    [
        ("[256:1,512:2,1024:4,>:8]", (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8)),
        ("[>:8]", (0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8)),
        ("[64:8,256:4,1024:4,>:1]", (8, 8, 8, 8, 8, 8, 8, 0, 4, 0, 4, 1, 1, 1, 1, 1)),
        ("[1:2,>:8]", (2, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8)),
        ("[256:1,512:2,1024:4]", (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 0, 0, 0, 0, 0)),
        ("[4:8]", (8, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        ("[1024:4,256:2]", (4, 4, 4, 4, 4, 4, 4, 4, 2, 4, 4, 0, 0, 0, 0, 0)),
        ("[131072:4]", (4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4)),
        ("[1:4,4:0,>:2]", (4, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2)),
    ],
)
def test_divisions_by_interval(text: str, table: tuple[int, ...]):
    config = AllocatorConfig.parse(f"roundup_power2_divisions:{text}")
    assert config.roundup_power2_divisions == table


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("foo:1", "Unrecognized key 'foo' in CUDA allocator config."),
        ("max_split_size_mb:64,nonsense:2", "Unrecognized key 'nonsense'"),
        ("backend:mine", "options are native and cudaMallocAsync"),
        ("pinned_num_register_threads:3", "power of 2, got 3"),
        ("pinned_num_register_threads:256", "less than or equal to 128, got 256"),
        ("pinned_reserve_segment_size_mb:0", "greater than 0"),
        ("per_process_memory_fraction:1.5", "[0.0, 1.0]"),
        ("expandable_segments:maybe", "'maybe'"),
        ("expandable_segments:", "ends where a value is expected"),
    ],
)
def test_settings_of_cuda_alone_are_checked(text: str, words: str):
    with pytest.raises(UsageError) as caught:
        AllocatorConfig.parse(text)
    assert words in str(caught.value)


def test_the_older_variable_wins_as_in_torch():
    both = {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32",
    }
    assert AllocatorConfig.from_env(both).max_split_size == 32 * MiB
    program = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=both, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "max_split_size_mb:32"


def test_each_variable_alone_is_read():
    for name in ENVIRONMENT:
        config = AllocatorConfig.from_env({name: "max_split_size_mb:48"})
        assert config.max_split_size == 48 * MiB
    assert AllocatorConfig.from_env({"HOME": "/"}) == AllocatorConfig()


def test_an_error_in_the_environment_names_the_variable():
    with pytest.raises(UsageError) as caught:
        AllocatorConfig.from_env({"PYTORCH_ALLOC_CONF": "max_split_size:64"})
    assert "PYTORCH_ALLOC_CONF='max_split_size:64'" in str(caught.value)
    assert "max_split_size" in str(caught.value)


@given(st.text(alphabet="abcdefgh_:,[]>0123456789. ", max_size=40))
def test_any_text_is_taken_or_refused_politely(text: str):
    try:
        AllocatorConfig.parse(text)
    except UsageError as error:
        assert str(error)


@given(st.integers(1, 64 * GiB), st.sampled_from(["", "roundup_power2_divisions:4"]))
def test_a_block_holds_its_request(nbytes: int, text: str):
    config = AllocatorConfig.parse(text)
    size = config.round_size(nbytes)
    assert size >= nbytes
    assert size % 512 == 0 or size >= 512
    assert config.segment_bytes(size) >= size
