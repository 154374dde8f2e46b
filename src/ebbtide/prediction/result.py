"""What a prediction says. Plain data: no torch, no trace, no allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.prediction.codec import decode, encode
from ebbtide.prediction.notebook import fragment
from ebbtide.prediction.parts import Alive, CurvePoint, Peak, Timeline
from ebbtide.prediction.words import article
from ebbtide.trace.model import Guess
from ebbtide.units import Range, format_bytes, format_seconds

STABLE = (
    "gpu",
    "fits",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "process_bytes",
    "ledger",
    "peak",
    "largest_batch",
    "curve",
    "guesses",
    "seconds",
)
"""The JSON fields that programs may rely on; the others may change with the version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What one workload needs on one GPU.

    The ledger is taken at the event where most is allocated while reserved memory
    stands at its peak: there it adds up, to the byte, to ``process_bytes.likely``,
    and ``cached/fragmentation`` is what the allocator really could not use.

    Attributes:
        gpu: the catalogue's name, such as ``"l4"``.
        gpu_label: the name people use, such as ``"L4"``.
        usable_bytes: what a process can use on it, its CUDA context included.
        fits: whether the likely figure fits.
        peak_allocated_bytes: `torch.cuda.max_memory_allocated()`.
        peak_reserved_bytes: `torch.cuda.max_memory_reserved()`.
        process_bytes: what nvidia-smi shows: reserved and the CUDA context.
        reserved_bytes: the peak of reserved for low, likely and high workspaces.
        context_bytes: what the CUDA context takes.
        ledger: part to bytes, see `PARTS`.
        peak: the moment the ledger is of.
        allocated_peak: the moment of `peak_allocated_bytes`, which may be another.
        alive: what was alive at `peak`, largest first.
        largest_hole_bytes: the largest stretch of cached memory free at `peak`.
        batch: samples in a step of the trace, None where not known.
        step_s, samples_per_s: predicted, see `CurvePoint`.
        largest_batch: the largest that fits, 0 where none does, None where not asked for.
        batch_cap: where the search for it stopped.
        seq: tokens a sample, None where the workload reads no text or hides its length.
        largest_seq: the largest that fits at `batch`; 0 and None as for `largest_batch`.
        seq_cap: where the search for it stopped: the positions the model has.
        best_batch: the smallest that fits with 95 % of the best samples a second.
        curve: by batch size; empty where not asked for.
        timeline: for the chart; None where not asked for.
        guesses: what was assumed.
        assumed: the settings of an architecture, in a line; "" where the workload sets them.
        retries: how often the allocator had to free its cached blocks to go on.
        torch_version: the torch whose behaviour was modelled.
        seconds: how long the prediction took.
    """

    gpu: str
    gpu_label: str
    usable_bytes: int
    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    process_bytes: Range
    reserved_bytes: Range
    context_bytes: Range
    ledger: Mapping[str, int]
    peak: Peak
    allocated_peak: Peak
    alive: tuple[Alive, ...] = ()
    largest_hole_bytes: int | None = None
    batch: int | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    largest_batch: int | None = None
    batch_cap: int | None = None
    best_batch: int | None = None
    seq: int | None = None
    largest_seq: int | None = None
    seq_cap: int | None = None
    curve: tuple[CurvePoint, ...] = ()
    timeline: Timeline | None = None
    guesses: tuple[Guess, ...] = ()
    assumed: str = ""
    retries: int = 0
    torch_version: str = ""
    seconds: float = 0.0

    @property
    def spare_bytes(self) -> int:
        """Usable memory that is left at the peak; negative where it does not fit."""
        return self.usable_bytes - self.process_bytes.likely

    @property
    def verdict(self) -> str:
        """The answer in a line: ``"fits an L4 with 3.10 GiB to spare; largest batch 24"``."""
        gpu = f"{article(self.gpu_label)} {self.gpu_label}"
        if self.fits:
            text = f"fits {gpu} with {format_bytes(max(self.spare_bytes, 0))} to spare"
            if self.process_bytes.high > self.usable_bytes:
                over = format_bytes(self.process_bytes.high - self.usable_bytes)
                text = f"probably {text} (at worst {over} too large)"
        else:
            text = f"does not fit {gpu}: it needs {format_bytes(self.process_bytes.likely)}"
            if self.spare_bytes < 0:
                text += f", {format_bytes(-self.spare_bytes)} more than there is"
        if self.largest_batch:
            beyond = " or more" if self.largest_batch == self.batch_cap else ""
            text += f"; largest batch {self.largest_batch}{beyond}"
        elif self.largest_batch == 0:
            text += "; no batch fits"
        if self.largest_seq:
            beyond = " (all it has positions for)" if self.largest_seq == self.seq_cap else ""
            text += f"; longest sequence {self.largest_seq}{beyond}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; those of `STABLE` come first and keep their meaning."""
        return {**encode(self, STABLE), "verdict": self.verdict}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Prediction:
        """The prediction that `to_json` wrote.

        Raises:
            UsageError: a field is missing or of another kind.
        """
        return decode(cls, data)

    def __str__(self) -> str:
        figures = (
            f"allocated {format_bytes(self.peak_allocated_bytes)}, "
            f"reserved {format_bytes(self.peak_reserved_bytes)}, "
            f"process {format_bytes(self.process_bytes.likely)}"
        )
        if self.step_s is not None:
            figures += f", step {format_seconds(self.step_s)} (predicted)"
        return f"{self.verdict}\n{figures}"

    def _repr_html_(self) -> str:
        return fragment(self)
