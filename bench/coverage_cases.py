"""One model of a coverage suite: build it small, run it forward and backward.

A case is run in a process of its own, on the CPU with real tensors or on the virtual GPU.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ebbtide.workloads import hf_config
from ebbtide.workloads.architecture import Architecture
from ebbtide.workloads.hf import TransformersModel
from ebbtide.workloads.hf_heads import model_class
from ebbtide.workloads.hf_mend import complete
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.shrink import shrink
from ebbtide.workloads.training import Training
from ebbtide.workloads.vision import TimmModel, TorchvisionModel

BATCH, SEQ = 2, 16
GPU = "a100-80gb"
# How a default configuration is made small, the cheapest way first; the next is tried
# where one breaks the model. The numbers are parameters at most, so that a CPU copes.
LEVELS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "narrow": (lambda config: shrink(config), 1e9),
    "slim": (lambda config: shrink(config, divisor=4), 5e8),
    "half": (lambda config: shrink(config, divisor=2), 5e8),
    "shallow": (lambda config: shrink(config, divisor=1), 4e8),
    "full": (lambda config: config, 2.5e8),
}
# No other size helps: the class, a library, a default value or an input is missing.
HOPELESS = re.compile("no model that is built|requires the|NoneType|needs the input|missing the")


def names(suite: str) -> list[str]:
    """Every model of a suite."""
    if suite == "transformers":
        return hf_config.model_types()
    if suite == "timm":
        import timm

        return list(timm.list_models())
    from torchvision import models

    quantized = "quantized_"
    return [name for name in models.list_models() if not name.startswith(quantized)]


def run(suite: str, name: str, virtual: bool, level: str | None) -> dict[str, Any]:
    """Run one case.

    Args:
        suite: ``"transformers"``, ``"timm"`` or ``"torchvision"``.
        name: of the model.
        virtual: on the virtual GPU instead of the CPU.
        level: of `LEVELS`, None to try one after the other.

    Returns:
        ``ok``, and where it failed ``stage`` and ``error``; ``level``; ``loss`` whether
        the model has a loss of its own.
    """
    torch.manual_seed(0)
    if suite != "transformers":
        return _attempt(lambda: _vision(suite, name), _image(name), virtual)
    attempts: list[dict[str, Any]] = []
    for each in [level] if level else LEVELS:
        result = _attempt(lambda: _transformers(name, each), None, virtual)  # noqa: B023
        result["level"] = each
        if result["ok"]:
            return result
        attempts.append(result)
        if HOPELESS.search(result["error"]):
            break
    # The first error is the telling one: later levels fail for being too large, too.
    return {**attempts[0], "others": [a["error"] for a in attempts[1:]]}


def _transformers(name: str, level: str) -> Architecture:
    make, limit = LEVELS[level]
    config = make(complete(hf_config.from_type(name)))
    if level != "narrow":
        with torch.device("meta"):
            count = sum(p.numel() for p in model_class(config)(config).parameters())
        if count > limit:
            raise ValueError(f"{count / 1e9:.2f} G parameters, too many for this test")
    model = TransformersModel(config, name)
    model.measure(_options(model))
    return model


def _options(architecture: Architecture) -> WorkloadOptions:
    reads = isinstance(architecture, TransformersModel) and architecture.reads_text()
    return WorkloadOptions(batch=BATCH, seq=SEQ if reads else None, optimizer="none")


def _vision(suite: str, name: str) -> Architecture:
    return TimmModel(name) if suite == "timm" else TorchvisionModel(name)


def _image(name: str) -> int | None:
    return None


@contextmanager
def virtual_gpu() -> Iterator[Any]:
    """The virtual GPU that is on already, or one for this case alone."""
    from ebbtide.vgpu.virtual_gpu import VirtualGpu

    if VirtualGpu._active is not None:
        yield VirtualGpu._active
        return
    with VirtualGpu(GPU) as gpu:
        yield gpu


def _attempt(make: Callable[[], Architecture], image: int | None, virtual: bool) -> dict[str, Any]:
    stage = "build"
    try:
        architecture = make()
        options = replace(_options(architecture), image=image)
        if virtual:
            with virtual_gpu() as gpu:
                training = Training(architecture, options, "cuda")
                stage = "step"
                training.step(0)
                peak = int(gpu.memory.max_memory_allocated())
            return {"ok": True, "peak_bytes": peak}
        training = Training(architecture, options, "cpu")
        stage = "step"
        training.step(0)
        return {"ok": True}
    except Exception as error:  # whatever a model raises is the result
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = [f"{os.path.basename(f.filename)}:{f.lineno} {f.line}" for f in frames]
        text = f"{type(error).__name__}: {error}"[:400]
        return {"ok": False, "stage": stage, "error": text, "where": where}
