"""Which traces answer a request: the one asked for, and others for the curves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.errors import EbbtideError, ScriptError, UsageError
from ebbtide.trace.file import load_trace
from ebbtide.trace.model import Trace
from ebbtide.workloads.batches import PLACEHOLDER, other_sizes
from ebbtide.workloads.request import Request

# Fewer tokens than this make other kernels, and no curve.
_LEAST_SEQ = 16
# Of a longer trace a third one, to check that memory grows evenly, takes too long: a curve
# is to cost less than three predictions. GPT-2's three steps are 2,600 operations.
_LONG_OPS = 10_000
# Steps that a trace has, from full batches of the data set.
STEPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One trace.

    Attributes:
        gpu: key of the catalogue.
        axis: ``"answer"`` for the trace asked for, ``"batch"`` or ``"seq"`` for a curve.
        batch: batch size, None for the workload's own.
        seq: tokens a sample, None for the workload's own.
        loader_batch: batch size that a script's data loaders get; None: as they are.
        loader_batch_now: the size that those have which are to be changed.
        quiet: not the first run, so what the script prints has been shown.
    """

    gpu: str
    axis: str = "answer"
    batch: int | None = None
    seq: int | None = None
    loader_batch: int | None = None
    loader_batch_now: int | None = None
    quiet: bool = False

    @property
    def answers(self) -> bool:
        """Whether this is the trace asked for."""
        return self.axis == "answer"

    def arguments(self, args: Sequence[str]) -> list[str]:
        """A script's arguments with the batch size put in."""
        size = str(self.batch)
        return [arg.replace(PLACEHOLDER, size) for arg in args] if self.batch else list(args)

    def check(self, trace: Trace) -> None:
        """Note the batch size of a script in its trace, if it is at that size.

        Raises:
            UsageError, ScriptError: its data loaders did not take the size.
        """
        if self.loader_batch is None:
            trace.meta["batch"] = self.batch if self.batch is not None else trace.meta["batch"]
            return
        if trace.meta["batch"] == self.loader_batch:
            return
        text = (
            f"the script trains at batch {trace.meta['batch']} although its data loaders were "
            f"given {self.loader_batch}"
            if trace.meta["batch"]
            else f"the script has no data loader that could be given batch {self.loader_batch}"
        )
        if self.answers:
            raise UsageError(f"--batch: {text}. {how_to_pass(trace.meta['target'])}")
        raise ScriptError(f"{text}. {how_to_pass(trace.meta['target'])}")


Send = Callable[..., None]
Tracer = Callable[[Job, Path], object]


def how_to_pass(target: str) -> str:
    """How the batch size of a script is made known."""
    return (
        f"If {Path(target).name} takes its batch size as an argument, say which: "
        f"--batch 8 -- --size {PLACEHOLDER}"
    )


def trace_all(request: Request, send: Send, trace: Tracer) -> None:
    """Trace what `request` asks for on each of its GPUs, and what its curves need.

    Args:
        request: the workload.
        send: called with an event's name and data: ``phase`` before a trace, ``trace``
            after it, ``no-curve`` where one cannot be had.
        trace: makes one trace and writes it.

    Raises:
        EbbtideError: the trace asked for cannot be had.
    """
    by_loader = (
        request.kind == "script"
        and request.batch is not None
        and not any(PLACEHOLDER in arg for arg in request.args)
    )
    for position, gpu in enumerate(request.gpus):
        job = Job(
            gpu=gpu,
            batch=None if by_loader else request.batch,
            loader_batch=request.batch if by_loader else None,
            quiet=position > 0,
        )
        first = load_trace(_timed(request, send, trace, job))
        if request.curve:
            _curves(request, send, trace, job, first)


def _curves(request: Request, send: Send, trace: Tracer, job: Job, first: Trace) -> None:
    meta = first.meta
    if meta.get("caught_out_of_memory"):
        text = "what the script does depends on where memory ends"
        return send("no-curve", gpu=job.gpu, axis="batch", text=text)
    if not meta.get("batch"):
        text = f"no batch size was found. {how_to_pass(request.target)}"
        return send("no-curve", gpu=job.gpu, axis="batch", text=text)
    jobs = {"batch": _batch_jobs(request, job, first), "seq": _seq_jobs(request, job, meta)}
    for axis, others in jobs.items():
        try:
            for other in others:
                _timed(request, send, trace, other)
        except Exception as error:
            # The answer stands; only the curve is missing.
            kind = "" if isinstance(error, EbbtideError) else f"{type(error).__name__}: "
            send("no-curve", gpu=job.gpu, axis=axis, text=f"{kind}{error}")


def _batch_jobs(request: Request, job: Job, first: Trace) -> Iterator[Job]:
    meta = first.meta
    own, batches = meta["batch"], meta.get("batches")
    most = None if batches is None else own * batches // STEPS
    sizes = other_sizes(own, most)
    if len(first.ops.name) > _LONG_OPS and own > 1:
        sizes = sizes[:1]
    by_loader = request.kind == "script" and job.batch is None
    of = meta["loader_batch"] if job.loader_batch is not None else own
    for size in sizes:
        if by_loader:
            yield Job(gpu=job.gpu, axis="batch", loader_batch=size, loader_batch_now=of, quiet=True)
        else:
            yield Job(gpu=job.gpu, axis="batch", batch=size, quiet=True)


def _seq_jobs(request: Request, job: Job, meta: dict[str, Any]) -> Iterator[Job]:
    """For those who care about the length, as it costs as much as the other curve."""
    if meta.get("seq") and request.options.seq is not None:
        for seq in other_seqs(meta["seq"], meta["longest_seq"]):
            yield Job(gpu=job.gpu, axis="seq", batch=job.batch, seq=seq, quiet=True)


def other_seqs(seq: int, longest: int) -> tuple[int, ...]:
    """Two further lengths to trace: attention may take memory with the square of the length."""
    lengths = (seq // 2, seq * 2) if seq * 2 <= longest else (seq // 4, seq // 2)
    return lengths if min(lengths) >= _LEAST_SEQ else ()


def _timed(request: Request, send: Send, trace: Tracer, job: Job) -> Path:
    size = job.batch or job.loader_batch
    send("phase", text="tracing", gpu=job.gpu, batch=size, seq=job.seq, quiet=job.quiet)
    started = time.perf_counter()
    path = Path(request.folder) / f"{job.gpu}-{job.axis}-{size}-{job.seq}.trace"
    trace(job, path)
    if not path.is_file():
        raise ScriptError("The script ended its process before its trace could be written.")
    seconds = time.perf_counter() - started
    send("trace", gpu=job.gpu, axis=job.axis, path=str(path), seconds=seconds)
    return path
