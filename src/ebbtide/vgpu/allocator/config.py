"""The settings of ``PYTORCH_ALLOC_CONF``, with torch's rules and torch's words.

Source: torch 2.13 and 2.14.1, `c10/core/AllocatorConfig.h`,
`c10/cuda/CUDAAllocatorConfig.h` and the messages in `libc10.so` and
`libc10_cuda.so`. Checked against the parser inside torch by
`tests/vgpu/allocator/test_config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.errors import UsageError
from ebbtide.units import MiB
from ebbtide.vgpu.allocator.sizes import (
    LARGE_SEGMENT,
    MIN_LARGE_ALLOC,
    POWER2_INTERVALS,
    UNLIMITED,
    round_size,
    segment_bytes,
)

ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Read in this order, the first that is set wins: in torch 2.13 the older name does."""

_MAX_REGISTER_THREADS = 128
_NUMBER = re.compile(r"\+?[0-9]+")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorConfig:
    """What can be configured about the caching allocator.

    Sizes are bytes. The `pinned_*` settings concern host memory and
    `release_lock_on_cudamalloc`, `graph_capture_record_stream_reuse` and
    `throw_on_cudamalloc_oom` concern speed or the text of an error: they are
    parsed and kept, and change no figure.
    """

    backend: str = "native"
    max_split_size: int = UNLIMITED
    max_non_split_rounding_size: int = LARGE_SEGMENT
    large_segment_size: int = LARGE_SEGMENT
    roundup_power2_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    release_lock_on_cudamalloc: bool = False
    graph_capture_record_stream_reuse: bool = False
    throw_on_cudamalloc_oom: bool = False
    pinned_use_cuda_host_register: bool = False
    pinned_num_register_threads: int = 1
    pinned_use_background_threads: bool = False
    pinned_reserve_segment_size_mb: int = 0
    pinned_free_catch_all: bool = False
    pinned_max_round_threshold_mb: int | None = None
    pinned_max_cached_size_mb: int | None = None
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> AllocatorConfig:
        """The settings in `text`, such as ``"max_split_size_mb:64,expandable_segments:True"``.

        Raises:
            UsageError: an unknown key or a value that torch refuses, in torch's words.
        """
        return _Parser(text).parse()

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> AllocatorConfig:
        """The settings of the environment: the first name of `ENVIRONMENT` that is set.

        Raises:
            UsageError: as `parse`; the message names the variable.
        """
        for name in ENVIRONMENT:
            text = environ.get(name)
            if text is not None:
                try:
                    return cls.parse(text)
                except UsageError as error:
                    raise UsageError(f"{name}={text!r}: {error}") from None
        return cls()

    def round_size(self, nbytes: int) -> int:
        """The block that a request of `nbytes` needs, in bytes."""
        return round_size(nbytes, self.roundup_power2_divisions)

    def segment_bytes(self, rounded: int) -> int:
        """What is taken from the driver for a block of `rounded` bytes, in bytes."""
        return segment_bytes(rounded, self.large_segment_size)


class _Parser:
    """Reads one setting text. Torch drops white space and does not check separators."""

    def __init__(self, text: str) -> None:
        squeezed = "".join(text.split())
        self.tokens: list[str] = re.findall(r"[,:\[\]]|[^,:\[\]]+", squeezed)
        self.at = 0
        self.config = AllocatorConfig(text=text)

    def parse(self) -> AllocatorConfig:
        # Torch reads this key first: it bounds others, wherever they stand.
        if "large_segment_size_mb" in self.tokens:
            self.at = self.tokens.index("large_segment_size_mb") + 2
            size = self.large_segment("large_segment_size_mb")
            self.config = replace(self.config, large_segment_size=size)
            self.at = 0
        while self.at < len(self.tokens):
            key = self.tokens[self.at]
            reader = _READERS.get(key)
            if reader is None:
                raise UsageError(f"Unrecognized key '{key}' in CUDA allocator config.")
            self.at += 2  # the key and its colon
            change: dict[str, Any] = {reader[0]: reader[1](self, key)}
            self.config = replace(self.config, **change)
            self.at += 2  # the value and the comma
        return self.config

    def token(self) -> str:
        if self.at >= len(self.tokens):
            raise UsageError(
                f"The allocator config {self.config.text!r} ends where a value is expected. "
                "Write key:value pairs with commas between them."
            )
        return self.tokens[self.at]

    def number(self, key: str) -> int:
        match = _NUMBER.match(self.token())
        if match is None:
            raise UsageError(f"{key} expects a whole number, got {self.token()!r}.")
        return int(match[0])

    def real(self, key: str) -> float:
        match = _REAL.match(self.token())
        if match is None:
            raise UsageError(f"{key} expects a number, got {self.token()!r}.")
        return float(match[0])

    def flag(self, key: str) -> bool:
        token = self.token()
        if token not in ("True", "False"):
            raise UsageError(
                f"Expected 'True' or 'False' at index {self.at} in ConfigTokenizer "
                f"but got '{token}' ({key})."
            )
        return token == "True"

    def backend(self, key: str) -> str:
        token = self.token()
        if token not in ("native", "cudaMallocAsync"):
            raise UsageError(
                f"Unknown allocator backend, options are native and cudaMallocAsync, got {token!r}."
            )
        return token

    def large_segment(self, key: str) -> int:
        size = self.number(key) * MiB
        if size <= MIN_LARGE_ALLOC:
            raise UsageError("CachingAllocator option large_segment_size_mb must be > 10 MB")
        return size

    def at_least_large_segment(self, key: str) -> int:
        least = self.config.large_segment_size // MiB
        megabytes = self.number(key)
        if megabytes < least:
            raise UsageError(f"CachingAllocator option {key} too small, must be >= {least}")
        return min(megabytes, UNLIMITED // MiB) * MiB

    def gc_threshold(self, key: str) -> float:
        threshold = self.real(key)
        if not 0 < threshold < 1:
            raise UsageError("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        return threshold

    def fraction(self, key: str) -> float:
        fraction = self.real(key)
        if not 0 <= fraction <= 1:
            raise UsageError(f"{key} is invalid, set it in [0.0, 1.0]")
        return fraction

    def register_threads(self, key: str) -> int:
        threads = self.number(key)
        if threads < 1 or threads & (threads - 1):
            raise UsageError(f"Number of register threads has to be power of 2, got {threads}")
        if threads > _MAX_REGISTER_THREADS:
            raise UsageError(
                "Number of register threads should be less than or equal to "
                f"{_MAX_REGISTER_THREADS}, got {threads}"
            )
        return threads

    def reserve_segment(self, key: str) -> int:
        megabytes = self.number(key)
        if megabytes == 0:
            raise UsageError("Pinned reserve segment size has to be greater than 0")
        return megabytes

    def divisions(self, key: str) -> tuple[int, ...]:
        if self.token() != "[":
            steps = self.number(key)
            if steps < 1 or steps & (steps - 1):
                raise UsageError("For roundups, the divisions has to be power of 2 ")
            return (steps,) * POWER2_INTERVALS
        table = [0] * POWER2_INTERVALS
        first, last = True, 0
        self.at += 1
        while self.token() != "]":
            interval = self.token()
            self.at += 2
            steps = self.number(key)
            if steps & (steps - 1):
                raise UsageError(
                    "For roundups, the divisions has to be power of 2 or 0 to disable roundup "
                )
            if interval == ">":
                table[last + 1 :] = [steps] * (POWER2_INTERVALS - 1 - last)
            else:
                last = _interval_index(interval)
                if first:
                    table[:last] = [steps] * last
                    first = False
                table[last] = steps
            self.at += 1
            if self.token() == ",":
                self.at += 1
        return tuple(table)


def _interval_index(text: str) -> int:
    match = _NUMBER.match(text)
    megabytes = int(match[0]) if match else 0
    if megabytes < 1 or megabytes & (megabytes - 1):
        raise UsageError("For roundups, the intervals have to be power of 2 ")
    return min(megabytes.bit_length() - 1, POWER2_INTERVALS - 1)


_READERS: dict[str, tuple[str, Callable[[_Parser, str], Any]]] = {
    "backend": ("backend", _Parser.backend),
    "max_split_size_mb": ("max_split_size", _Parser.at_least_large_segment),
    "max_non_split_rounding_mb": (
        "max_non_split_rounding_size",
        _Parser.at_least_large_segment,
    ),
    "large_segment_size_mb": ("large_segment_size", _Parser.large_segment),
    "roundup_power2_divisions": ("roundup_power2_divisions", _Parser.divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _Parser.gc_threshold),
    "expandable_segments": ("expandable_segments", _Parser.flag),
    "per_process_memory_fraction": ("per_process_memory_fraction", _Parser.fraction),
    "release_lock_on_cudamalloc": ("release_lock_on_cudamalloc", _Parser.flag),
    "release_lock_on_hipmalloc": ("release_lock_on_cudamalloc", _Parser.flag),
    "graph_capture_record_stream_reuse": (
        "graph_capture_record_stream_reuse",
        _Parser.flag,
    ),
    "throw_on_cudamalloc_oom": ("throw_on_cudamalloc_oom", _Parser.flag),
    "pinned_use_cuda_host_register": ("pinned_use_cuda_host_register", _Parser.flag),
    "pinned_use_hip_host_register": ("pinned_use_cuda_host_register", _Parser.flag),
    "pinned_num_register_threads": ("pinned_num_register_threads", _Parser.register_threads),
    "pinned_use_background_threads": ("pinned_use_background_threads", _Parser.flag),
    "pinned_reserve_segment_size_mb": (
        "pinned_reserve_segment_size_mb",
        _Parser.reserve_segment,
    ),
    "pinned_free_catch_all": ("pinned_free_catch_all", _Parser.flag),
    "pinned_max_round_threshold_mb": ("pinned_max_round_threshold_mb", _Parser.number),
    "pinned_max_cached_size_mb": ("pinned_max_cached_size_mb", _Parser.number),
}
