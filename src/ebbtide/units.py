"""Bytes and seconds: parse what people write, format what people read.

Bytes are `int`, seconds are `float`; a quantity that is only known within
bounds is a `Range`. Sizes are shown in binary units (1 GiB = 2**30 bytes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ebbtide.errors import UsageError

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
TiB = 1 << 40

_FACTORS = {
    "": 1,
    "b": 1,
    "k": KiB,
    "kib": KiB,
    "kb": 1000,
    "m": MiB,
    "mib": MiB,
    "mb": 1000**2,
    "g": GiB,
    "gib": GiB,
    "gb": 1000**3,
    "t": TiB,
    "tib": TiB,
    "tb": 1000**4,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """A quantity of which only bounds and a best estimate are known."""

    low: int
    likely: int
    high: int

    def __post_init__(self) -> None:
        if not self.low <= self.likely <= self.high:
            raise ValueError(
                f"Range: expected low <= likely <= high, got {self.low}, {self.likely}, {self.high}"
            )

    @classmethod
    def exact(cls, value: int) -> Range:
        """A quantity that is known."""
        return cls(value, value, value)

    def __add__(self, other: Range | int) -> Range:
        if isinstance(other, int):
            other = Range.exact(other)
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)

    __radd__ = __add__


def parse_bytes(text: str) -> int:
    """Bytes from text such as ``"22GiB"``, ``"512 MB"`` or ``"1024"``.

    Raises:
        UsageError: the text is no size.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is no size. Write for example 22GiB, 512MiB or 24GB.")
    return round(float(match[1]) * factor)


def parse_release(version: str) -> tuple[int, int]:
    """Major and minor of a version of torch such as ``"2.13.0+cpu"``.

    Raises:
        UsageError: that is no version.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise UsageError(f"{version!r} is no version of torch. Write for example 2.13.0.")
    return int(found[1]), int(found[2])


def format_bytes(n: int | float) -> str:
    """`n` bytes in binary units, three significant figures or so: ``"13.8 GiB"``."""
    size = abs(n)
    for unit, factor, digits in (
        ("TiB", TiB, 2),
        ("GiB", GiB, 2),
        ("MiB", MiB, 1),
        ("KiB", KiB, 1),
    ):
        # Rounding up must not leave "1024.0 MiB" where "1.00 GiB" is meant.
        if size >= factor or round(size / (factor >> 10), digits) >= 1024:
            return f"{n / factor:.{digits}f} {unit}"
    return f"{n:.0f} B"


def format_seconds(s: float) -> str:
    """`s` seconds for people: ``"310 ms"``, ``"2.60 s"``, ``"1 h 02 min"``."""
    size = abs(s)
    if size < 0.9995e-3:
        return f"{s * 1e6:.0f} us"
    if size < 0.9995:
        return f"{s * 1e3:.3g} ms"
    if size < 59.95:
        return f"{s:.3g} s"
    minutes = round(s / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"
