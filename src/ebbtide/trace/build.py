"""From the tape of a virtual GPU to a `Trace`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ebbtide.trace.model import (
    AllocTable,
    Category,
    Event,
    Guess,
    OpTable,
    Phase,
    Trace,
)
from ebbtide.vgpu.tape import UNKNOWN, Tape
from ebbtide.vgpu.virtual_gpu import VirtualGpu

# Where Transformers' caches take memory: keys and values, also those not handed out yet.
_CACHE_FILE = "transformers/cache_utils.py"
_COPIES = ("aten::_to_copy", "aten::copy_", "aten::empty_strided")


def build_trace(gpu: VirtualGpu, *, trained: bool, meta: dict[str, Any]) -> Trace:
    """The trace of everything on the tape of `gpu`.

    Args:
        gpu: the virtual GPU, active or left.
        trained: whether a backward pass ran; if not, evaluation is called inference.
        meta: kept with the trace.
    """
    tape = gpu.tape
    phases = tuple(
        Phase(name="inference" if name == "evaluation" and not trained else name, step=step)
        for name, step in tape.phases
    )
    events = len(tape.kind)
    extra = np.zeros(events, np.int64)
    for position, value in tape.extra.items():
        extra[position] = value
    return Trace(
        gpu=gpu.spec.key,
        torch_version=torch.__version__,
        names=tuple(tape.names.items),
        modules=tuple(tape.modules.items),
        lines=tuple(tape.lines.items),
        phases=phases,
        ops=_ops(tape),
        allocs=_allocs(tape, phases),
        event_kind=np.array(tape.kind, np.uint8),
        event_arg=np.array(tape.arg, np.int64),
        event_extra=extra,
        guesses=tuple(
            Guess(kind=kind, text=text, count=count)
            for kind, (text, count) in sorted(gpu.guesses.items())
        ),
        meta=meta,
    )


def _ops(tape: Tape) -> OpTable:
    def ints(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(values, np.int64)

    return OpTable(
        name=ints(tape.op_name),
        module=ints(tape.op_module),
        line=ints(tape.op_line),
        phase=ints(tape.op_phase),
        stream=ints(tape.op_stream),
        rate=ints(tape.op_rate),
        flops=ints(tape.op_flops),
        moved_bytes=ints(tape.op_moved),
        seconds=np.array(tape.op_seconds, np.float64),
    )


def _allocs(tape: Tape, phases: tuple[Phase, ...]) -> AllocTable:
    return AllocTable(
        likely_bytes=np.array(tape.alloc_bytes, np.int64),
        low_bytes=np.array(tape.alloc_low, np.int64),
        high_bytes=np.array(tape.alloc_high, np.int64),
        fallback_bytes=np.array(tape.alloc_fallback, np.int64),
        category=np.array(_categories(tape, phases), np.int64),
        op=np.array(tape.alloc_op, np.int64),
        stream=np.array(tape.alloc_stream, np.int64),
    )


def _categories(tape: Tape, phases: tuple[Phase, ...]) -> list[int]:
    """The category of each allocation: as marked, else by the phases of its life.

    What a forward pass leaves to a later phase is an activation; what dies in the
    phase in which it was made is a temporary, and so is the rest of a backward or an
    optimizer phase. A copy from the host outside any module is an input.
    """
    born: dict[int, int] = {}
    died: dict[int, int] = {}
    phase = 0
    for kind, arg in zip(tape.kind, tape.arg, strict=True):
        if kind == Event.PHASE:
            phase = arg
        elif kind == Event.ALLOC:
            born[arg] = phase
        elif kind == Event.FREE:
            died[arg] = phase
    caches = [line.startswith(_CACHE_FILE) for line in tape.lines.items]
    found: list[int] = []
    for row, category in enumerate(tape.alloc_category):
        if category != UNKNOWN:
            found.append(category)
            continue
        name = phases[born[row]].name
        op = tape.alloc_op[row]
        if op >= 0 and caches[tape.op_line[op]] and name != "backward":
            found.append(Category.KV_CACHE)
            continue
        outside = op >= 0 and tape.op_module[op] == 0
        copied = outside and tape.names.items[tape.op_name[op]] in _COPIES
        if copied and name in ("between", "setup"):
            found.append(Category.INPUT)
        elif died.get(row) == born[row]:
            found.append(Category.TEMPORARY)
        elif name in ("forward", "inference", "evaluation"):
            found.append(Category.ACTIVATION)
        elif name in ("backward", "optimizer"):
            found.append(Category.TEMPORARY)
        else:
            found.append(Category.OTHER)
    return found
