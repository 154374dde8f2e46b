"""The dtype of the weights, where the user leaves it to a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ebbtide.workloads.options import WorkloadOptions

LABELS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def stated_dtype(config: Any) -> str | None:
    """What a configuration of Transformers says, as `WorkloadOptions.dtype`; None for no word.

    `from_pretrained` loads weights in it: ``dtype="auto"`` is its default since Transformers 5.
    """
    names = {label: name for name, label in LABELS.items()}
    for part in (config, config.get_text_config()):
        found = names.get(str(getattr(part, "dtype", None)).removeprefix("torch."))
        if found is not None:
            return found
    return None


def with_stated_dtype(options: WorkloadOptions, config: Any) -> tuple[WorkloadOptions, str]:
    """`options` with the dtype that inference takes from `config`, and a note where training
    does not take it.

    Weights are trained in float32 where nobody asks for less: most recipes do so, whatever the
    weights are published in.
    """
    stated = stated_dtype(config)
    if options.dtype is not None or stated is None:
        return options, ""
    if options.inference:
        return replace(options, dtype=stated), ""
    if stated == "fp32":
        return options, ""
    return options, (
        f"Weights taken as float32; the configuration says {LABELS[stated]} (--dtype {stated})"
    )
