"""What other estimators said of the xMem rows."""

from __future__ import annotations

import csv
from pathlib import Path

from .rows import DATA

ESTIMATORS = {
    "xMem": "xmem_err",
    "DNNMem": "dnnmem_err",
    "SchedTune": "schedtune_err",
    "LLMem": "llmem_err",
}


def read_rivals(path: Path | None = None) -> dict[str, dict[str, float]]:
    """Estimator to row id (``"xmem-..."``) to relative error, for the rows that it covers."""
    with (path or DATA / "xmem_rivals.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    return {
        name: {
            f"xmem-{line['path'].rsplit('/', 1)[-1]}": float(line[column])
            for line in lines
            if line[column]
        }
        for name, column in ESTIMATORS.items()
    }
