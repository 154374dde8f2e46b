"""Make deep learning fit the GPU memory there is.

The public names are loaded at first use, so ``import ebbtide`` is quick, imports
no torch and changes nothing in it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbtide._version import __version__
from ebbtide.errors import (
    DoesNotFitError,
    EbbtideError,
    MissingExtraError,
    PlanError,
    ScriptError,
    SnapshotError,
    TargetError,
    UnknownGpuError,
    UsageError,
    VirtualGpuError,
)

if TYPE_CHECKING:
    from ebbtide.fitting.api import fit
    from ebbtide.fitting.plan import Plan
    from ebbtide.gpus.spec import Gpu
    from ebbtide.prediction.api import assert_fits, predict
    from ebbtide.prediction.result import Prediction
    from ebbtide.trace.replay import replay
    from ebbtide.vgpu.virtual_gpu import VirtualGpu

# Public name to the module that defines it.
_LAZY = {
    "Gpu": "ebbtide.gpus.spec",
    "Plan": "ebbtide.fitting.plan",
    "Prediction": "ebbtide.prediction.result",
    "VirtualGpu": "ebbtide.vgpu.virtual_gpu",
    "assert_fits": "ebbtide.prediction.api",
    "fit": "ebbtide.fitting.api",
    "predict": "ebbtide.prediction.api",
    "replay": "ebbtide.trace.replay",
}

__all__ = [
    "DoesNotFitError",
    "EbbtideError",
    "Gpu",
    "MissingExtraError",
    "Plan",
    "PlanError",
    "Prediction",
    "ScriptError",
    "SnapshotError",
    "TargetError",
    "UnknownGpuError",
    "UsageError",
    "VirtualGpu",
    "VirtualGpuError",
    "__version__",
    "assert_fits",
    "fit",
    "predict",
    "replay",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'ebbtide' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value  # the next access does not come through here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
