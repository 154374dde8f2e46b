"""What a GPU can do: sizes in bytes, speeds in bytes or operations a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

# Where a GPU has no units for a dtype, torch computes in the next wider one it has.
_COMPUTED_AS = {
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
    "uint8": "int8",
    "float8": "float16",
    "int8": "float32",
    "float16": "float32",
    "bfloat16": "float32",
    "tf32": "float32",
    "complex64": "float32",
    "complex128": "float64",
    "float64": "float32",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a figure comes from.

    Attributes:
        title: the document, with its version; starts with "Derived" for a figure
            that nobody published and that a stated rule gives.
        url: where it stands.
        date: of the document, or of the look-up where it has none.
    """

    title: str
    url: str
    date: date

    @property
    def derived(self) -> bool:
        """Whether the figure follows from a rule and not from a document."""
        return self.title.startswith("Derived")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        key: how Ebbtide names it: lower case, with the memory where it comes in several.
        name: what its maker calls it.
        vendor: ``"NVIDIA"`` or ``"AMD"``.
        arch: its architecture: ``"Ampere"``, ``"Hopper"``.
        compute_capability: CUDA's, such as ``(8, 9)``; None for AMD.
        memory_bytes: the size it is sold by.
        usable_bytes: what the driver offers, as `total_memory` of torch's device properties.
        bandwidth_bytes_s: of its own memory.
        link_bytes_s: between it and the host, one direction; 0 where unknown.
        sm_count: streaming multiprocessors; 0 where unknown.
        l2_bytes: level-2 cache; 0 where unknown.
        flops: dense operations a second by torch's dtype name, and ``"tf32"``, with
            float32 accumulation; empty where only memory figures are kept.
        aliases: other names it goes by.
        sources: by the name of the figure (``"usable_bytes"``, ``"flops.float16"``).
    """

    key: str
    name: str
    vendor: str
    arch: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int
    usable_bytes: int
    bandwidth_bytes_s: float
    link_bytes_s: float
    sm_count: int
    l2_bytes: int
    flops: Mapping[str, float] = field(hash=False)
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict, hash=False, repr=False)

    def rate(self, dtype: str) -> float:
        """Dense operations a second that this GPU reaches at best in `dtype`.

        Args:
            dtype: torch's name without the prefix, or ``"tf32"``.

        Returns:
            The rate; that of the next wider dtype with units of its own where
            `dtype` has none; 0.0 where no rate is known at all.
        """
        seen: str | None = dtype
        while seen is not None:
            if seen in self.flops:
                return self.flops[seen]
            seen = _COMPUTED_AS.get(seen)
        return self.flops.get("float32", 0.0)
