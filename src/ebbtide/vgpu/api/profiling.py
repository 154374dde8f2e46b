"""Profilers: they see the host; there are no kernels of a GPU to see."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import profiler as host_profiler
from torch.profiler import ProfilerActivity
from torch.profiler import profiler as kineto

from ebbtide.vgpu.api.surface import Surface
from ebbtide.vgpu.patches import PatchSet

_TEXT = "a profiler was asked for the GPU's kernels: it sees the host alone"


def _without_gpu(vgpu: Surface, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *, activities: Any = None, **options: Any) -> None:
        wanted = [ProfilerActivity.CPU] if activities is None else list(activities)
        if ProfilerActivity.CUDA in wanted:
            vgpu.guess("profiler", _TEXT)
            wanted.remove(ProfilerActivity.CUDA)
        original(self, activities=wanted or [ProfilerActivity.CPU], **options)

    return __init__


def _host_only(vgpu: Surface, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, enabled: bool = True, **options: Any) -> None:
        if options.pop("use_cuda", False) or options.get("use_device") == "cuda":
            vgpu.guess("profiler", _TEXT)
            options["use_device"] = None
        original(self, enabled, **options)

    return __init__


@contextlib.contextmanager
def _no_ranges(enabled: bool = True, record_shapes: bool = False) -> Iterator[None]:
    yield


def _config() -> str:
    return (
        f"PyTorch {torch.__version__} on Ebbtide's virtual GPU\n"
        f"  - CUDA Runtime {torch.version.cuda}\n  - CuDNN {torch.backends.cudnn.version()}\n"
    )


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Keep profilers to the host."""
    patches.wrap(kineto._KinetoProfile, "__init__", lambda original: _without_gpu(vgpu, original))
    patches.wrap(host_profiler.profile, "__init__", lambda original: _host_only(vgpu, original))
    patches.everywhere([(host_profiler.emit_nvtx, _no_ranges)])
    patches.set(torch._C, "_show_config", _config)
