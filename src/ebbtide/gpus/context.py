"""How much a process holds on the GPU beside its tensors: the CUDA context.

Nobody publishes it, so it is derived from what people saw (`data/context.toml`):

* The driver keeps local memory for every thread that can be resident, so the bare
  context grows with SMs x threads per SM. Five sightings on Ampere, Ada, Hopper and
  Blackwell agree on 2.0 to 2.1 KiB a thread.
* With *lazy* loading (CUDA 11.7 and torch 1.13 on, driver 515 on) kernels and library
  handles come on top as they are used. The range goes from none to what was left on a
  card after a diffusion model had run; the middle is called likely.
* With *eager* loading all kernels of the library are loaded at once; how much that is
  depends on the torch build and the architecture, and is taken from the sightings.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from statistics import median

from ebbtide.gpus.catalogue import catalogue
from ebbtide.gpus.spec import Gpu
from ebbtide.units import MiB, Range

# NVIDIA, CUDA C++ Programming Guide 13.0 (2025-08), technical specifications per compute
# capability: maximum number of resident threads per multiprocessor, where it is not 2048.
_THREADS_PER_SM = {
    (7, 5): 1024,
    (8, 6): 1536,
    (8, 7): 1536,
    (8, 9): 1536,
    (12, 0): 1536,
    (12, 1): 1536,
}
# pytorch/pytorch#86509 (2022-10-07) makes CUDA_MODULE_LOADING=LAZY the default.
_LAZY_TORCH = (1, 13)
# NVIDIA, CUDA C++ Programming Guide 13.0 (2025-08), lazy loading: needs driver 515.
_LAZY_DRIVER = 515


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One sighting of a context's size.

    Attributes:
        gpu: key in the catalogue; None where it was not said.
        torch: version that opened the context; None for another program, or unsaid.
        cuda: version of the runtime; None where unsaid.
        loading: ``"lazy"`` or ``"eager"``.
        after: ``"init"`` or ``"work"``.
        context_bytes: what nvidia-smi showed less what the allocator had reserved.
        used: whether the ranges are derived from it.
        source: who saw it where.
        url: the same.
        date: when.
        note: why it is not used; empty if it is.
    """

    gpu: str | None
    torch: tuple[int, int] | None
    cuda: tuple[int, int] | None
    loading: str
    after: str
    context_bytes: int
    used: bool
    source: str
    url: str
    date: date
    note: str


@cache
def observations() -> tuple[Observation, ...]:
    """Every sighting in the data file, used or not."""
    text = files("ebbtide.gpus").joinpath("data/context.toml").read_text(encoding="utf-8")
    return tuple(
        Observation(
            gpu=entry.get("gpu"),
            torch=_version(entry.get("torch")),
            cuda=_version(entry.get("cuda")),
            loading=entry["loading"],
            after=entry["after"],
            context_bytes=round(entry["mib"] * MiB),
            used=entry["used"],
            source=entry["source"],
            url=entry["url"],
            date=entry["date"],
            note=entry.get("note", ""),
        )
        for entry in tomllib.loads(text)["observation"]
    )


def _version(numbers: list[int] | None) -> tuple[int, int] | None:
    return None if numbers is None else (numbers[0], numbers[1])


def context_bytes(
    gpu: Gpu, torch_version: tuple[int, int] = (2, 13), driver: int | None = None
) -> Range:
    """What nvidia-smi shows for a process over what the caching allocator has reserved.

    Args:
        gpu: the GPU.
        torch_version: major and minor.
        driver: the major number of NVIDIA's driver (``535``); a current one where None.

    Returns:
        Bytes, as a range from public sightings (see the module's own text). For a GPU
        that is not NVIDIA's no figure was found: the span of all sightings.
    """
    if gpu.compute_capability is None:
        return _span()
    if is_lazy(torch_version, driver):
        return _bare(gpu) + _loaded_lazily()
    return _bare(gpu) + _loaded_eagerly(gpu, torch_version)


def is_lazy(torch_version: tuple[int, int], driver: int | None = None) -> bool:
    """Whether kernels are loaded when first launched, and not all at the start."""
    return torch_version >= _LAZY_TORCH and (driver is None or driver >= _LAZY_DRIVER)


def _threads(gpu: Gpu) -> int:
    return gpu.sm_count * _THREADS_PER_SM.get(gpu.compute_capability or (0, 0), 2048)


def _used(loading: str, after: str) -> list[tuple[Gpu, Observation]]:
    return [
        (catalogue()[seen.gpu], seen)
        for seen in observations()
        if seen.used and seen.gpu and seen.loading == loading and seen.after == after
    ]


def _bare(gpu: Gpu) -> Range:
    """The context before any kernel is loaded."""
    threads = _threads(gpu)
    rates = [seen.context_bytes / _threads(on) for on, seen in _used("lazy", "init")]
    return Range(
        round(min(rates) * threads), round(median(rates) * threads), round(max(rates) * threads)
    )


@cache
def _loaded_lazily() -> Range:
    high = max(seen.context_bytes - _bare(on).likely for on, seen in _used("lazy", "work"))
    return Range(0, high // 2, high)


def _loaded_eagerly(gpu: Gpu, torch_version: tuple[int, int]) -> Range:
    """All kernels of the library: of the same architecture where anybody saw one."""
    seen = _used("eager", "init")
    same = [(on, one) for on, one in seen if on.arch == gpu.arch] or seen
    sizes = [one.context_bytes - _bare(on).likely for on, one in same]
    near = [
        (abs(_minor(one.torch) - _minor(torch_version)), size)
        for (_, one), size in zip(same, sizes, strict=True)
        if one.torch
    ]
    return Range(min(sizes), min(near)[1], max(sizes))


def _minor(version: tuple[int, int]) -> int:
    return version[0] * 100 + version[1]


def _span() -> Range:
    sizes = sorted(seen.context_bytes for seen in observations() if seen.loading == "lazy")
    return Range(sizes[0], round(median(sizes)), sizes[-1])
