"""Which GPU a program sees."""

from __future__ import annotations

import pytest
import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.gpus import find
from ebbtide.vgpu.virtual_gpu import VirtualGpu

MiB = 1 << 20


def test_one_device_is_there(gpu: VirtualGpu) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.is_initialized()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    torch.cuda.init()
    torch.cuda.synchronize()
    torch.cuda.set_device("cuda:0")
    torch.cuda.ipc_collect()
    assert not torch.cuda.can_device_access_peer(0, 0)


def test_properties_are_those_of_the_spec(gpu: VirtualGpu) -> None:
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == "NVIDIA L4" == torch.cuda.get_device_name()
    assert (properties.major, properties.minor) == (8, 9) == torch.cuda.get_device_capability()
    assert properties.total_memory == gpu.spec.usable_bytes
    assert properties.multi_processor_count == 58
    assert properties.L2_cache_size == 48 * MiB
    assert properties.warp_size == 32
    assert "name='NVIDIA L4', major=8, minor=9" in repr(properties)
    assert len(str(properties.uuid)) == 36


# CUDA C++ Programming Guide 13.0, table of technical specifications: resident threads and
# KiB of shared memory of a multiprocessor, largest KiB of a block.
@pytest.mark.parametrize(
    ("name", "threads", "shared", "block"),
    [
        ("v100-16gb", 2048, 96, 96),
        ("t4", 1024, 64, 64),
        ("a100-80gb", 2048, 164, 163),
        ("a10", 1536, 100, 99),
        ("l4", 1536, 100, 99),
        ("h100-80gb", 2048, 228, 227),
        ("b200", 2048, 228, 227),
    ],
)
def test_limits_follow_the_compute_capability(
    name: str, threads: int, shared: int, block: int
) -> None:
    with VirtualGpu(name):
        properties = torch.cuda.get_device_properties()
        assert properties.max_threads_per_multi_processor == threads
        assert properties.shared_memory_per_multiprocessor == shared * 1024
        assert properties.shared_memory_per_block_optin == block * 1024
        assert properties.shared_memory_per_block == 48 * 1024


@pytest.mark.parametrize(("name", "native"), [("t4", False), ("a100-40gb", True)])
def test_bf16_and_tf32_start_with_ampere(name: str, native: bool) -> None:
    with VirtualGpu(name):
        assert torch.cuda.is_bf16_supported()
        assert torch.cuda.is_bf16_supported(including_emulation=False) is native or not native
        assert (torch.cuda.get_device_capability() >= (8, 0)) is native


@pytest.mark.parametrize("name", ["v100-16gb", "t4", "a100-80gb", "l4", "h100-80gb", "b200"])
def test_the_build_has_code_for_every_gpu(name: str) -> None:
    major = find(name).compute_capability[0]  # type: ignore[index]
    with VirtualGpu(name):
        codes = [int(arch.removeprefix("sm_")) for arch in torch.cuda.get_arch_list()]
        assert any(code // 10 == major for code in codes)
        torch.cuda._check_capability()  # warns, and so fails, where nothing runs
        torch.cuda._check_cubins()


def test_a_second_device_is_refused(gpu: VirtualGpu) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(1)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(1)
    with torch.cuda.device(0), torch.cuda.device(-1):
        assert torch.cuda.current_device() == 0
    with torch.cuda.device_of(torch.empty(1)):
        assert torch.cuda.current_device() == 0


def test_versions_and_switches(gpu: VirtualGpu) -> None:
    assert torch.version.cuda is not None
    assert torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() > 90000
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.benchmark
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False


def test_attention_switches(gpu: VirtualGpu) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        assert torch.backends.cuda.math_sdp_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_the_accelerator_is_the_gpu(gpu: VirtualGpu) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    x = torch.empty(1000, device="cuda")
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() >= 4000
    assert torch.accelerator.current_stream() == torch.cuda.current_stream()
    del x


def test_profiling_ranges_nest(gpu: VirtualGpu) -> None:
    assert torch.cuda.nvtx.range_push("a") == 0
    assert torch.cuda.nvtx.range_push("b") == 1
    torch.cuda.nvtx.mark("here")
    assert torch.cuda.nvtx.range_pop() == 1
    assert torch.cuda.nvtx.range_pop() == 0


def test_the_runtime(gpu: VirtualGpu) -> None:
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaProfilerStart())
    torch.cuda.check_error(runtime.cudaProfilerStop())
    assert runtime.cudaHostRegister(0, 10, 0) == 0
    assert runtime.cudaMemGetInfo(0) == torch.cuda.mem_get_info()
    with pytest.raises(torch.cuda.CudaError, match="CUDA error 2"):
        torch.cuda.check_error(2)


def test_sensors_are_guesses(gpu: VirtualGpu) -> None:
    assert torch.cuda.utilization() == torch.cuda.temperature() == 0
    assert gpu.guesses["sensor"][1] == 2


def test_sync_debug_mode_is_kept(gpu: VirtualGpu) -> None:
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    torch.cuda.set_sync_debug_mode(0)


def test_what_needs_kernels_is_refused_by_name(gpu: VirtualGpu) -> None:
    with pytest.raises(VirtualGpuError, match=r"torch\.cuda\.tunable"):
        torch.cuda.tunable.enable(True)
    assert not torch.cuda.tunable.is_enabled()
