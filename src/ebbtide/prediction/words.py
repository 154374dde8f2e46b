"""How people call a GPU."""

from __future__ import annotations

import re

_WORDS = {"PCIE": "PCIe", "TI": "Ti", "SUPER": "Super", "ADA": "Ada", "TITAN": "Titan"}


def gpu_label(key: str) -> str:
    """The name people use for a key of the catalogue: ``"A100 80 GB"`` for ``"a100-80gb"``."""
    words = [_WORDS.get(word, word) for word in key.upper().split("-")]
    return re.sub(r"\b(\d+)GB\b", r"\1 GB", " ".join(words))


def article(name: str) -> str:
    """``"an"`` before a name whose first letter is spoken with a vowel: an L4, an RTX 4090."""
    return "an" if name[:1].upper() in set("AEFHILMNORSX") else "a"
