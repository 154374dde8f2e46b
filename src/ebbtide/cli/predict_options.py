"""The arguments and options of ``ebbtide predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "For an architecture or checkpoint"
_OUTPUT = "Output"

Target = Annotated[
    str,
    typer.Argument(
        help="A script (train.py), module:function, a Transformers model type, config.json or "
        "hub id, a timm or torchvision model, a checkpoint folder, or a saved trace.",
        metavar="TARGET",
    ),
]
Args = Annotated[
    list[str] | None,
    typer.Argument(help="The script's own arguments, after `--`.", metavar="ARGS"),
]
GpuNames = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu", "-g", help="GPU to predict for; may be repeated, or `any`.", metavar="NAME"
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        help="Batch size. In a script's arguments, {batch} stands for it; data loaders are given "
        "it where no argument has it. Of an architecture, 8 by default; for inference, 1 request.",
        metavar="N",
    ),
]
Batches = Annotated[
    str | None,
    typer.Option(help="Batch sizes of the curve: `1..256`, or `8,16,24`.", metavar="SIZES"),
]
NoCurve = Annotated[
    bool, typer.Option("--no-curve", help="One batch size only; about twice as fast.")
]
Seconds = Annotated[
    float,
    typer.Option(help="Stop a script after this long and take what it did so far.", metavar="TIME"),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON: an object, or a list of them for several GPUs.",
        rich_help_panel=_OUTPUT,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        help="Write a report into one HTML file.", metavar="FILE", rich_help_panel=_OUTPUT
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        help="Write the trace (of the first GPU), a TARGET for later: run.trace.",
        metavar="FILE",
        rich_help_panel=_OUTPUT,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Overwrite these files.", rich_help_panel=_OUTPUT)
]
Seq = Annotated[
    int | None,
    typer.Option(
        help="Tokens a sample; for inference, of the prompt. Default: 512, or as many as the "
        "model has positions for.",
        metavar="N",
        rich_help_panel=_MODEL,
    ),
]
Image = Annotated[
    int | None,
    typer.Option(help="Side of an image, in pixels.", metavar="PIXELS", rich_help_panel=_MODEL),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Of the parameters: fp32, bf16 or fp16. Default: as a checkpoint stores them; for "
        "inference, as the configuration says; else fp32.",
        metavar="DTYPE",
        rich_help_panel=_MODEL,
    ),
]
Amp = Annotated[
    str | None,
    typer.Option(help="Autocast to bf16 or fp16.", metavar="DTYPE", rich_help_panel=_MODEL),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        help="adamw (the default), adam, sgd, momentum, adagrad, rmsprop, adafactor or none.",
        metavar="NAME",
        rich_help_panel=_MODEL,
    ),
]
GradAccum = Annotated[
    int, typer.Option(help="Batches that make one step.", metavar="N", rich_help_panel=_MODEL)
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--checkpointing", help="Recompute activations in backward.", rich_help_panel=_MODEL
    ),
]
LoraOption = Annotated[
    str | None,
    typer.Option(
        "--lora",
        help="Train adapters: their rank and layers, such as 16,q_proj,v_proj.",
        metavar="R,TARGETS",
        rich_help_panel=_MODEL,
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="Hold weights in int8, fp8 or nf4.", metavar="FORMAT", rich_help_panel=_MODEL
    ),
]
Inference = Annotated[
    bool,
    typer.Option(
        "--inference",
        help="No gradients. (Functions too.) The default for a checkpoint, where no option of "
        "training is given.",
        rich_help_panel=_MODEL,
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        help="For inference: tokens a request holds in its KV cache at the end; --batch counts "
        "requests.",
        metavar="N",
        rich_help_panel=_MODEL,
    ),
]
