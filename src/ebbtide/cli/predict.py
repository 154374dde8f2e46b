"""``ebbtide predict``: does it fit, what fills the memory, which batch size."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ebbtide.cli import predict_options as option
from ebbtide.cli.outputs import check_file
from ebbtide.cli.progress import Progress
from ebbtide.cli.render_predict import render
from ebbtide.cli.streams import writing
from ebbtide.errors import UsageError
from ebbtide.gpus import Gpu, catalogue, find
from ebbtide.prediction.curve import BATCHES
from ebbtide.prediction.page import report
from ebbtide.prediction.predict import Question, predict_target
from ebbtide.report.plotlyjs import plotly_js
from ebbtide.trace.file import load_trace, save_trace
from ebbtide.workloads.options import Lora, WorkloadOptions
from ebbtide.workloads.request import Request
from ebbtide.workloads.target import TRACE_SUFFIX, resolve

_DEFAULT_GPU = "a100-80gb"
_BATCH_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_LIST = re.compile(r"\d{1,9}(,\d{1,9})*")
# About a dozen sizes make a curve; more cost time and say no more.
_DOZEN = 12


def predict(
    target: option.Target,
    args: option.Args = None,
    gpu: option.GpuNames = None,
    batch: option.Batch = None,
    batches: option.Batches = None,
    no_curve: option.NoCurve = False,
    seconds: option.Seconds = 600.0,
    as_json: option.AsJson = False,
    html: option.Html = None,
    save: option.Save = None,
    force: option.Force = False,
    seq: option.Seq = None,
    image: option.Image = None,
    dtype: option.Dtype = None,
    amp: option.Amp = None,
    optimizer: option.Optimizer = None,
    grad_accum: option.GradAccum = 1,
    checkpointing: option.Checkpointing = False,
    lora: option.LoraOption = None,
    quantize: option.Quantize = None,
    inference: option.Inference = False,
    kv_tokens: option.KvTokens = None,
) -> None:
    """Say whether a training script or model fits a GPU, and why.

    Exit code 0: it fits every GPU named; 1: it does not; 2: it could not be
    predicted.
    """
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
    request = resolve(
        target, args=tuple(args or ()), options=options, curve=not no_curve, seconds=seconds
    )
    sizes = parse_batches(batches)
    _check_outputs(html, save, force)
    question = Question(request=request, gpus=_gpus(gpu, request), batches=sizes)
    with Progress(Console(stderr=True), script=request.kind == "script") as progress:
        predictions, traces = predict_target(question, progress)
    if html is not None:
        _write(html, report(predictions, title=" ".join([target, *(args or [])])))
    if save is not None:
        save_trace(traces[0], save)
    with writing():
        if as_json:
            found: list[dict[str, Any]] = [each.to_json() for each in predictions]
            print(json.dumps(found[0] if len(found) == 1 else found, indent=2))
        else:
            render(predictions, Console())
    raise typer.Exit(0 if all(each.fits for each in predictions) else 1)


def _gpus(names: Sequence[str] | None, request: Request) -> tuple[Gpu, ...]:
    if not names:
        recorded = load_trace(request.target).gpu if request.kind == "trace" else None
        return (find(recorded or _DEFAULT_GPU),)
    if "any" in names:
        return tuple(gpu for gpu in catalogue().values() if gpu.compute_capability is not None)
    return tuple({gpu.key: gpu for gpu in map(find, names)}.values())


def parse_batches(text: str | None) -> tuple[int, ...]:
    """Batch sizes from ``"1..256"`` or ``"8,16,24"``, ascending.

    A range has its ends and about a dozen sizes, of those that people use where
    there are enough of them.

    Raises:
        UsageError: they are none, or not positive.
    """
    if text is None:
        return BATCHES
    joined = text.replace(" ", "")
    between = _BATCH_RANGE.fullmatch(joined)
    if between is None and not _LIST.fullmatch(joined):
        raise UsageError(f"--batches: expected 1..256 or 8,16,24, got {text!r}")
    if between is None:
        found = sorted({int(part) for part in joined.split(",")})
    else:
        low, high = int(between[1]), int(between[2])
        if low > high:
            raise UsageError(f"--batches: expected the smaller size first, got {text!r}")
        found = _spread(low, high)
    if found[0] < 1:
        raise UsageError(f"--batches: expected sizes of at least 1, got {text!r}")
    return tuple(found)


def _spread(low: int, high: int) -> list[int]:
    usual = {*BATCHES, *(1 << power for power in range(8, 30))}
    inside = {size for size in usual if low <= size <= high}
    if len(inside) > _DOZEN:
        inside = {1 << power for power in range(30)} & inside
    if len(inside) * 2 < _DOZEN:
        steps = min(_DOZEN - 1, high - low)
        inside = {low + round((high - low) * step / max(steps, 1)) for step in range(steps)}
    return sorted(inside | {low, high})


def _check_outputs(html: Path | None, save: Path | None, force: bool) -> None:
    """Find out before the work whether the files can be written after it."""
    if save is not None and save.suffix != TRACE_SUFFIX:
        raise UsageError(f"--save: name it {save.stem}{TRACE_SUFFIX}, so that it can be a TARGET.")
    if html is not None:
        plotly_js()  # says what to install
    if html is not None and save is not None and html.resolve() == save.resolve():
        raise UsageError(f"--html and --save both name {html}. Give each a file of its own.")
    for path in (html, save):
        if path is not None:
            check_file(path, force)


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
