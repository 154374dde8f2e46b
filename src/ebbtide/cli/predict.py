"""``ebbtide predict``: does it fit, what fills the memory, which batch size."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from ebbtide.cli.render_predict import render
from ebbtide.errors import UsageError
from ebbtide.gpus import Gpu, catalogue, find
from ebbtide.prediction.curve import BATCHES
from ebbtide.prediction.page import report
from ebbtide.prediction.predict import Question, predict_target
from ebbtide.report.plotlyjs import plotly_js
from ebbtide.trace.file import save_trace
from ebbtide.workloads.options import Lora, WorkloadOptions
from ebbtide.workloads.target import resolve

_BATCH_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MODEL = "For an architecture"


def predict(
    target: Annotated[
        str,
        typer.Argument(
            help="A script (train.py), module:function, a Transformers model type, config.json or "
            "hub id, a timm or torchvision model, or a checkpoint folder."
        ),
    ],
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after `--`.")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", "-g", help="GPU to predict for; several allowed, or `any`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report into one HTML file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the trace of the first GPU.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    batches: Annotated[
        str | None, typer.Option(help="Batch sizes of the curve: `1..256`, or `8,16,24`.")
    ] = None,
    no_curve: Annotated[
        bool, typer.Option("--no-curve", help="One batch size only; twice as fast.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="Stop a script after this long and take what it did so far.")
    ] = 600.0,
    batch: Annotated[
        int | None, typer.Option(help="Batch size.", rich_help_panel=_MODEL)
    ] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens a sample.")] = None,
    image: Annotated[int | None, typer.Option(help="Side of an image, in pixels.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the parameters: fp32, bf16, fp16.")] = "fp32",
    amp: Annotated[str | None, typer.Option(help="Autocast to bf16 or fp16.")] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, adam, sgd, ...")] = "adamw",
    grad_accum: Annotated[int, typer.Option(help="Micro-batches a step.")] = 1,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute activations in backward.")
    ] = False,
    lora: Annotated[
        str | None, typer.Option(help="Rank and layers of adapters: 16,q_proj,v_proj.")
    ] = None,
    quantize: Annotated[str | None, typer.Option(help="Weights in int8, fp8 or nf4.")] = None,
    inference: Annotated[bool, typer.Option("--inference", help="No gradients.")] = False,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens a request holds in its KV cache.")
    ] = None,
) -> None:
    """Say whether a training script or model fits a GPU, and why.

    Exit code 0: it fits every GPU named; 1: it does not; 2: it could not be predicted.
    """
    _check_outputs([html, save], force)
    if html is not None:
        plotly_js()  # says what to install before anything is run
    options = WorkloadOptions(
        batch=batch,
        seq=seq,
        image=image,
        dtype=dtype,
        amp=amp,
        optimizer=optimizer,
        grad_accum=grad_accum,
        checkpointing=checkpointing,
        lora=Lora.parse(lora) if lora else None,
        quantize=quantize,
        inference=inference,
        kv_tokens=kv_tokens,
    )
    question = Question(
        request=resolve(
            target, args=tuple(args or ()), options=options, curve=not no_curve, seconds=seconds
        ),
        gpus=_gpus(gpu or ["a100-80gb"]),
        batches=parse_batches(batches),
    )
    talk = Console(stderr=True)
    with talk.status(f"Reading {target}") as status:
        predictions, traces = predict_target(question, lambda m: _progress(status, m))
    if html is not None:
        _write(html, report(predictions, title=" ".join([target, *(args or [])])))
    if save is not None:
        save_trace(traces[0], save)
    if as_json:
        found: list[dict[str, Any]] = [each.to_json() for each in predictions]
        print(json.dumps(found[0] if len(found) == 1 else found, indent=2))
    else:
        render(predictions, Console())
    raise typer.Exit(0 if all(each.fits for each in predictions) else 1)


def _gpus(names: Sequence[str]) -> tuple[Gpu, ...]:
    if "any" in names:
        return tuple(each for each in catalogue() if each.compute_capability is not None)
    found: dict[str, Gpu] = {}
    for name in names:
        each = find(name)
        found.setdefault(each.key, each)
    return tuple(found.values())


def parse_batches(text: str | None) -> tuple[int, ...]:
    """Batch sizes from ``"1..256"`` or ``"8,16,24"``, ascending.

    Raises:
        UsageError: they are none, or not positive.
    """
    if text is None:
        return BATCHES
    between = _BATCH_RANGE.fullmatch(text.strip())
    if between:
        low, high = int(between[1]), int(between[2])
        found = {b for b in BATCHES if low <= b <= high} | {low, high}
        while max(found) * 2 < high:
            found.add(max(b for b in found if b < high) * 2)
            if len(found) > 40:
                break
    else:
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdigit() for part in parts):
            raise UsageError(f"--batches: expected 1..256 or 8,16,24, got {text!r}")
        found = {int(part) for part in parts}
    if min(found) < 1 or (between and int(between[1]) > int(between[2])):
        raise UsageError(f"--batches: expected positive sizes in ascending order, got {text!r}")
    return tuple(sorted(found))


def _check_outputs(paths: Sequence[Path | None], force: bool) -> None:
    for path in paths:
        if path is None:
            continue
        if path.exists() and not force:
            raise UsageError(f"{path} exists already. Use --force to overwrite it.")
        if not path.parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {path.parent}.")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _progress(status: Status, message: dict[str, Any]) -> None:
    if message["event"] != "phase":
        return
    if not sys.stderr.isatty():
        return
    text = "Importing" if message["text"] == "importing" else f"Tracing on {message['gpu']}"
    if message.get("batch"):
        text += f" at batch {message['batch']}"
    status.update(text)
