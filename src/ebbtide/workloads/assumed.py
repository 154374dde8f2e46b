"""The settings that an architecture is predicted with, in one line."""

from __future__ import annotations

from ebbtide.workloads.architecture import Architecture
from ebbtide.workloads.optimizers import DEFAULT
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.stated import LABELS

_OPTIMIZERS = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "momentum": "SGD with momentum",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
    "adafactor": "Adafactor",
    "none": "no optimizer",
}


def assumed(architecture: Architecture, options: WorkloadOptions, batch: int) -> str:
    """Such as ``"training, batch 8, 512 tokens, float32, AdamW; configuration: bundled x"``.

    Args:
        architecture: what was built; where it says its origin, that is told too.
        options: as `find` completed them.
        batch: samples a step, or requests.
    """
    said = _inference(options, batch) if options.inference else [f"training, batch {batch}"]
    said += _sizes(architecture, options)
    said.append(LABELS[options.dtype or "fp32"])
    if options.quantize is not None:
        said.append(f"{options.quantize} weights")
    if options.amp is not None:
        said.append(f"autocast {LABELS[options.amp]}")
    if not options.inference:
        said += _training(options)
    origin = getattr(architecture, "origin", "")
    return ", ".join(said) + (f"; configuration: {origin}" if origin else "")


def _inference(options: WorkloadOptions, batch: int) -> list[str]:
    said = ["inference", "1 request" if batch == 1 else f"{batch} requests"]
    if options.kv_tokens is not None:
        said.append(f"cache of {options.kv_tokens} tokens each")
    return said


def _sizes(architecture: Architecture, options: WorkloadOptions) -> list[str]:
    said = []
    if getattr(architecture, "reads_text", lambda: False)():
        tokens = options.seq or architecture.default_seq()  # type: ignore[attr-defined]
        said.append(f"prompt of {tokens} tokens" if options.inference else f"{tokens} tokens")
    own = getattr(architecture, "default_image", lambda: None)()
    if options.image or own:
        said.append(f"{options.image or own} pixels")
    return said


def _training(options: WorkloadOptions) -> list[str]:
    said = [_OPTIMIZERS[options.optimizer or DEFAULT]]
    if options.grad_accum > 1:
        said.append(f"{options.grad_accum} batches a step")
    if options.checkpointing:
        said.append("checkpointing")
    if options.lora is not None:
        said.append(f"LoRA of rank {options.lora.r}")
    return said
