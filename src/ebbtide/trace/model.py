"""A trace: the ordered events of one workload on the virtual GPU.

Columnar and free of torch, so that a report can be made where torch is not
installed and a million events cost little. The order of events is the order in
which the allocator and the device would see them:

* ``OP`` opens an operation; the allocations that belong to it follow.
* ``ALLOC``/``FREE`` name a row of `Trace.allocs`.
* ``PHASE`` names a row of `Trace.phases`; it holds until the next one.
* ``EMPTY_CACHE`` is `torch.cuda.empty_cache()`.
* ``RECORD_STREAM`` is `Tensor.record_stream`: row of `allocs`, stream in `extra`.
* ``SYNC`` is a host synchronisation (``.item()``, ``synchronize()``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

VERSION = 1


class Event(IntEnum):
    """What happened; see the module's own text."""

    ALLOC = 0
    FREE = 1
    OP = 2
    PHASE = 3
    EMPTY_CACHE = 4
    RECORD_STREAM = 5
    SYNC = 6


class Category(IntEnum):
    """What an allocation is for: the rows of the ledger that live in the allocator."""

    PARAMETER = 0
    BUFFER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    INPUT = 4
    ACTIVATION = 5
    KV_CACHE = 6
    TEMPORARY = 7
    WORKSPACE = 8
    OTHER = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A stretch of the workload.

    Attributes:
        name: ``"setup"``, ``"forward"``, ``"backward"``, ``"optimizer"``,
            ``"evaluation"``, ``"inference"``, ``"between"``.
        step: training step, or forward number of an inference; 0 before the first.
    """

    name: str
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """Something the trace could not know and assumed.

    Attributes:
        kind: a short stable word, e.g. ``"item"``, ``"nonzero"``, ``"unknown-op"``.
        text: one sentence for people.
        count: how often.
    """

    kind: str
    text: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OpTable:
    """One row an operation. Integer columns index the tables of the trace.

    `rate` is the entry of `names` that says which arithmetic rate of the GPU the
    operation runs at (``"float32"``, ``"bfloat16"``, ...), so that its time can be
    worked out for another GPU; `seconds` is for the GPU of the trace, predicted.
    """

    name: Ints
    module: Ints
    line: Ints
    phase: Ints
    stream: Ints
    rate: Ints
    flops: Ints
    moved_bytes: Ints
    seconds: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocTable:
    """One row an allocation: bytes as requested, before the allocator rounds them.

    `low_bytes` and `high_bytes` differ from `likely_bytes` only where a library
    chooses a workspace that cannot be known from outside (cuDNN). `fallback_bytes` is
    what the operation does with where `likely_bytes` do not fit the GPU; equal to them
    where there is no other way, so that the allocation fails. `op` is the row
    of the operation that allocated, or -1. `category` is a `Category`.
    """

    likely_bytes: Ints
    low_bytes: Ints
    high_bytes: Ints
    fallback_bytes: Ints
    category: Ints
    op: Ints
    stream: Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What one workload did on the virtual GPU."""

    gpu: str
    torch_version: str
    names: tuple[str, ...]
    modules: tuple[str, ...]
    lines: tuple[str, ...]
    phases: tuple[Phase, ...]
    ops: OpTable
    allocs: AllocTable
    event_kind: npt.NDArray[np.uint8]
    event_arg: Ints
    event_extra: Ints
    guesses: tuple[Guess, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
