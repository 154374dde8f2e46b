"""``ebbtide fit``: what makes a training step fit, at the least cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from ebbtide.cli import fit_options as own
from ebbtide.cli import predict_options as option
from ebbtide.cli.outputs import check_file
from ebbtide.cli.progress import Progress
from ebbtide.cli.render_fit import render
from ebbtide.cli.streams import writing
from ebbtide.errors import DoesNotFitError, UsageError
from ebbtide.fitting.command import plan_target
from ebbtide.gpus import find
from ebbtide.units import parse_bytes
from ebbtide.workloads.options import Lora, WorkloadOptions
from ebbtide.workloads.target import resolve

_DEFAULT_GPU = "a100-80gb"


def fit(
    target: option.Target,
    args: option.Args = None,
    gpu: own.GpuName = None,
    budget: own.Budget = None,
    batch: option.Batch = None,
    seconds: option.Seconds = 600.0,
    as_json: own.AsJson = False,
    plan_file: own.PlanFile = None,
    force: own.Force = False,
    seq: option.Seq = None,
    image: option.Image = None,
    dtype: option.Dtype = None,
    amp: option.Amp = None,
    optimizer: option.Optimizer = None,
    grad_accum: option.GradAccum = 1,
    lora: option.LoraOption = None,
    quantize: option.Quantize = None,
) -> None:
    """Plan what makes a training step fit, at the least cost.

    The step is looked at and the plan is tried on a virtual GPU. Exit code 0: the plan fits;
    1: nothing does; 2: it could not be planned.
    """
    options = WorkloadOptions(
        batch=batch,
        seq=seq,
        image=image,
        dtype=dtype,
        amp=amp,
        optimizer=optimizer,
        grad_accum=grad_accum,
        lora=Lora.parse(lora) if lora else None,
        quantize=quantize,
    )
    request = resolve(target, args=tuple(args or ()), options=options, seconds=seconds)
    if request.options.inference:
        raise UsageError(
            f"{target} is for inference: there is no training step to plan. Name an option of "
            "training, such as --optimizer adamw, to train it."
        )
    spec = find(gpu or _DEFAULT_GPU)
    bytes_ = _budget(budget)
    if plan_file is not None:
        check_file(plan_file, force)
    request = replace(request, gpus=(spec.key,), budget_bytes=bytes_)
    try:
        with Progress(Console(stderr=True), script=request.kind == "script") as progress:
            plan = plan_target(request, progress)
    except DoesNotFitError as error:
        _nothing(error, bytes_, as_json)
        raise typer.Exit(1) from error
    if plan_file is not None:
        plan.save(Path(plan_file), force=force)
    with writing():
        if as_json:
            print(json.dumps(plan.to_json(), indent=2))
        else:
            render(plan, spec, Console(), plan_file)


def _budget(text: str | None) -> int | None:
    if text is None:
        return None
    found = parse_bytes(text)
    if found <= 0:
        raise UsageError(f"--budget: expected more than 0 bytes, got {text!r}.")
    return found


def _nothing(error: DoesNotFitError, budget_bytes: int | None, as_json: bool) -> None:
    with writing():
        if not as_json:
            Console(stderr=True).print(f"[bold red]Nothing fits.[/] {error}", highlight=False)
            return
        print(
            json.dumps(
                {
                    "budget_bytes": budget_bytes,
                    "fits": False,
                    "predicted_peak_bytes": None,
                    "predicted_step_s": None,
                    "host_bytes": 0,
                    "techniques": [],
                    "front": [],
                    "optimality_gap": None,
                    "reason": str(error),
                },
                indent=2,
            )
        )
