"""What is known of errors above ten percent in rows that no bound holds."""

from __future__ import annotations

import re

from .result import Result

NOTABLE = 0.10

_CAUSES = (
    (
        r"qwen3-Qwen3-(0\.6B|1\.7B|4B)-FP8",
        "the configuration ties the head to the embedding; the measured figure has room for "
        "both, as if the FP8 checkpoint had been loaded untied",
    ),
    (
        r"xmem-cerebras",
        "batches are padded to their longest line, which is not published: with other lengths "
        "the same run reserves from 3.3 to 5.1 GiB",
    ),
    (
        r"xmem-",
        "which engine cuDNN took, and so which segments its workspaces left for later tensors",
    ),
    (
        r"schedtune-",
        "optimizer, torch, CUDA and driver are not stated: contexts of that time were from 0.8 "
        "to 1.4 GiB, and Adam on vgg11 takes 1 GiB more than plain SGD",
    ),
    (
        r"peft-",
        "the longest batch of training and the prompts of the evaluation are not published",
    ),
    (
        r"litgpt-",
        "litgpt's own model code, loss in chunks and data set; here Transformers' classes",
    ),
    (r"xt-325", "neither the GPU nor the kind of figure is stated"),
)


def cause(result: Result) -> str:
    """Why the row is off; empty below `NOTABLE`, and for rows that nothing is known of."""
    if result.likely_bytes is None or abs(result.error) <= NOTABLE:
        return ""
    for pattern, text in _CAUSES:
        if re.match(pattern, result.id):
            return f"cause: {text}"
    return ""
