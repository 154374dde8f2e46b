"""From the names people write to a GPU of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache

from ebbtide.errors import UnknownGpuError
from ebbtide.gpus.catalogue import catalogue
from ebbtide.gpus.spec import Gpu
from ebbtide.units import GiB

# Words that tell nobody apart.
_NOISE = frozenset(
    "nvidia amd geforce tesla instinct radeon corporation gpu graphics card tensor core "
    "hbm2 hbm2e hbm3 hbm3e gddr6 gddr6x gddr7 generation edition one of its".split()
)
_SIZE = re.compile(r"(\d+)\s*(?:gib|gb|g)\b")
_SERIES = re.compile(r"\b([rg]tx)(?=\d)|(?<=\d{4})(ti|super)\b")
_TOKEN = re.compile(r"[a-z0-9.]+")


def find(name: str) -> Gpu:
    """The GPU called `name`.

    Args:
        name: a key (``"a100-80gb"``) or a usual spelling: ``"NVIDIA A100-SXM4-80GB"``,
            ``"RTX4090"``, ``"4090"``, ``"h100 sxm"``, ``"Tesla T4"``.

    Raises:
        UnknownGpuError: no GPU goes by that name (the nearest are offered), or
            several do (they are listed).
    """
    found = candidates(name)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(gpu.key for gpu in found)
        raise UnknownGpuError(f"{name!r} could be several GPUs. Say which: {listed}.")
    near = _nearest(name)
    hint = (
        f"Did you mean {', '.join(near)}?" if near else "`ebbtide gpus` lists all that are known."
    )
    raise UnknownGpuError(f"No GPU called {name!r} is known. {hint}")


def candidates(name: str, memory_bytes: int | None = None) -> list[Gpu]:
    """Every GPU that `name` may mean, in the catalogue's order; empty where none.

    A name that is one GPU's own, in any usual spelling, means that one alone.

    Args:
        name: as people write it.
        memory_bytes: the memory of one GPU, where it is known beside the name; it
            decides between GPUs of one name, within 5 % (decimal and binary sizes).
    """
    tokens = _tokens(name)
    if not tokens:
        return []
    joined = "".join(tokens)
    known = catalogue()
    if joined in (exact := _exact()):
        found = [known[exact[joined]]]
    else:
        found = [
            gpu
            for gpu in known.values()
            if set(tokens) <= _words(gpu.key) or joined in _openings(gpu.key)
        ]
    if memory_bytes is None or not found:
        return found
    fitting = [gpu for gpu in found if _same_size(gpu, memory_bytes)]
    if not fitting:
        # The plain name may be one size's own while another has the memory asked for.
        fitting = [
            gpu
            for gpu in known.values()
            if _same_size(gpu, memory_bytes) and joined in _sizeless(gpu.key)
        ]
    return fitting


def _same_size(gpu: Gpu, memory_bytes: int) -> bool:
    sizes = (gpu.memory_bytes, gpu.usable_bytes, gpu.memory_bytes / GiB * 1e9)
    return any(abs(memory_bytes / size - 1) <= 0.05 for size in sizes)


def _tokens(name: str) -> list[str]:
    text = _SIZE.sub(r" \1gb ", name.lower().replace("_", " "))
    text = _SERIES.sub(lambda match: f" {match[0]} ", text)
    return [word for word in _TOKEN.findall(text) if word not in _NOISE]


def _names(gpu: Gpu) -> Iterator[list[str]]:
    for name in (gpu.key, gpu.name, *gpu.aliases):
        yield _tokens(name)


@cache
def _exact() -> dict[str, str]:
    """Joined name to key; a GPU's key wins over another's alias."""
    known = catalogue()
    names = {"".join(tokens): gpu.key for gpu in known.values() for tokens in _names(gpu)}
    return names | {"".join(_tokens(key)): key for key in known}


@cache
def _openings(key: str) -> frozenset[str]:
    """The whole-word beginnings of a GPU's names, joined: ``h100``, ``h100sxm``."""
    return frozenset(
        "".join(tokens[:count])
        for tokens in _names(catalogue()[key])
        for count in range(1, len(tokens) + 1)
    )


@cache
def _sizeless(key: str) -> frozenset[str]:
    """A GPU's names without the memory in them, joined."""
    return frozenset(
        "".join(word for word in tokens if not _SIZE.fullmatch(word))
        for tokens in _names(catalogue()[key])
    )


@cache
def _words(key: str) -> frozenset[str]:
    return frozenset(word for tokens in _names(catalogue()[key]) for word in tokens)


def _nearest(name: str) -> list[str]:
    joined = "".join(_tokens(name)) or name.lower()
    names = _exact()
    close = get_close_matches(joined, names, n=6, cutoff=0.5)
    return list(dict.fromkeys(names[match] for match in close))[:4]
