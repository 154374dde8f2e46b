"""The GPUs that Ebbtide knows, read from `data/gpus.toml` when first asked for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from ebbtide.gpus.spec import Gpu, Source
from ebbtide.units import GiB, MiB

# What no GPU of this or the next decade lies outside of: a slipped unit does.
_RANGES: dict[str, tuple[float, float]] = {
    "memory_bytes": (4 * GiB, 1024 * GiB),
    "usable_bytes": (3 * GiB, 1024 * GiB),
    "bandwidth_bytes_s": (1e11, 5e13),
    "link_bytes_s": (1e9, 2e12),
    "sm_count": (1, 1000),
    "l2_bytes": (MiB, GiB),
}
_FLOPS_RANGE = (1e10, 1e17)
_DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")


def catalogue() -> Mapping[str, Gpu]:
    """Every GPU by its key, in the order of the data file; the same object at each call."""
    return _bundled()


@cache
def _bundled() -> Mapping[str, Gpu]:
    text = files("ebbtide.gpus").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    return MappingProxyType(parse(text))


def parse(text: str) -> dict[str, Gpu]:
    """GPUs from the text of a data file laid out like `data/gpus.toml`.

    Raises:
        ValueError: a figure is missing, has no source or lies outside of any sense;
            the message names the GPU and the figure.
    """
    data = tomllib.loads(text)
    sources = {key: Source(**entry) for key, entry in data["sources"].items()}
    return {key: _gpu(key, entry, sources) for key, entry in data["gpus"].items()}


def _gpu(key: str, entry: Mapping[str, Any], sources: Mapping[str, Source]) -> Gpu:
    vendor = entry["vendor"]
    optional = () if vendor == "NVIDIA" else ("link_bytes_s", "sm_count", "l2_bytes")
    found: dict[str, Source] = {}
    figures = {
        name: _figure(key, name, entry.get(name), bounds, sources, found, name in optional)
        for name, bounds in _RANGES.items()
    }
    flops = {
        dtype: float(_figure(key, f"flops.{dtype}", figure, _FLOPS_RANGE, sources, found, False))
        for dtype, figure in entry.get("flops", {}).items()
    }
    if unknown := set(flops) - set(_DTYPES):
        raise ValueError(f"{key}: flops of {sorted(unknown)}; known dtypes are {_DTYPES}")
    if figures["usable_bytes"] > figures["memory_bytes"] * 1.01:
        raise ValueError(
            f"{key}: usable_bytes {figures['usable_bytes']} exceeds memory_bytes "
            f"{figures['memory_bytes']}: a unit has slipped"
        )
    capability = entry.get("compute_capability")
    if vendor == "NVIDIA" and (capability is None or "float32" not in flops):
        raise ValueError(f"{key}: compute_capability and flops.float32 are needed")
    return Gpu(
        key=key,
        name=entry["name"],
        vendor=vendor,
        arch=entry["arch"],
        compute_capability=None if capability is None else (capability[0], capability[1]),
        memory_bytes=figures["memory_bytes"],
        usable_bytes=figures["usable_bytes"],
        bandwidth_bytes_s=float(figures["bandwidth_bytes_s"]),
        link_bytes_s=float(figures["link_bytes_s"]),
        sm_count=figures["sm_count"],
        l2_bytes=figures["l2_bytes"],
        flops=MappingProxyType(flops),
        aliases=tuple(entry.get("aliases", ())),
        sources=MappingProxyType(found),
    )


def _figure(
    key: str,
    name: str,
    figure: Any,
    bounds: tuple[float, float],
    sources: Mapping[str, Source],
    found: dict[str, Source],
    optional: bool,
) -> int:
    if figure is None and optional:
        return 0
    if not (isinstance(figure, list) and len(figure) == 2 and isinstance(figure[0], int)):
        raise ValueError(f"{key}: {name} should be [whole number, source], got {figure!r}")
    value, source = figure
    if source not in sources:
        raise ValueError(f"{key}: {name} names the source {source!r}, which the file lacks")
    low, high = bounds
    if not low <= value <= high:
        raise ValueError(f"{key}: {name} = {value} lies outside {low:g} to {high:g}")
    if not isinstance(sources[source].date, date):
        raise ValueError(f"{key}: the source {source!r} of {name} has no date")
    found[name] = sources[source]
    return int(value)
