"""Let the tests here import what lies beside them, and the reference allocator."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "vgpu" / "allocator"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
