"""The colours of the parts of memory, the same in the terminal and in HTML.

Middle tones, so that each reads on a light and on a dark ground; neighbours in a
stacked bar differ in lightness as well as in hue, for colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "parameters": "#2f6fd0",
        "buffers": "#7fb0ee",
        "gradients": "#e07b39",
        "optimizer state": "#8a63c9",
        "inputs": "#3aa6a0",
        "activations": "#d8475f",
        "KV cache": "#c99a1d",
        "temporaries": "#4c9f50",
        "workspaces": "#a0714f",
        "other": "#8796a8",
        "rounding": "#b9a7d6",
        "cached/fragmentation": "#93979e",
        "CUDA context": "#5d6b7c",
    }
)
"""Name of a part of memory to its colour, in the order in which bars stack them."""

_SPARE = ("#2f6fd0", "#e07b39", "#4c9f50", "#8a63c9", "#c99a1d", "#d8475f")


def colour(name: str) -> str:
    """The colour of the part called `name`; a steady one for a name not in `PARTS`."""
    return PARTS.get(name) or _SPARE[sum(name.encode()) % len(_SPARE)]
