"""Categories worked out from the life of an allocation, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.trace.build import build_trace
from ebbtide.trace.model import Category, Event, Trace
from ebbtide.vgpu.tape import RECORD_STREAM, SYNC, Tape
from ebbtide.vgpu.virtual_gpu import VirtualGpu


@pytest.fixture
def gpu() -> VirtualGpu:
    """A virtual GPU that was never on, for its tape."""
    return VirtualGpu("l4")


def _op(tape: Tape, name: str, module: str = "", line: str = "") -> None:
    tape.op = len(tape.op_name)
    tape.op_name.append(tape.names.of(name))
    tape.op_module.append(tape.modules.of(module))
    tape.op_line.append(tape.lines.of(line))
    tape.op_phase.append(tape.phase)
    tape.op_stream.append(tape.stream)
    tape.op_rate.append(tape.names.of("float32"))
    tape.op_flops.append(10)
    tape.op_moved.append(20)
    tape.op_seconds.append(0.5)
    tape.event(Event.OP, tape.op)


def _category(gpu: VirtualGpu, row: int = 0, trained: bool = True) -> Category:
    trace = build_trace(gpu, trained=trained, meta={})
    return Category(trace.allocs.category[row])


@pytest.mark.parametrize(
    ("phase", "dies_in", "expected"),
    [
        ("forward", "forward", Category.TEMPORARY),
        ("forward", "backward", Category.ACTIVATION),
        ("forward", None, Category.ACTIVATION),
        ("evaluation", "evaluation", Category.TEMPORARY),
        ("evaluation", None, Category.ACTIVATION),
        ("backward", "backward", Category.TEMPORARY),
        ("backward", "optimizer", Category.TEMPORARY),
        ("optimizer", None, Category.TEMPORARY),
        ("between", None, Category.OTHER),
        ("between", "between", Category.TEMPORARY),
    ],
)
def test_by_the_phases_of_its_life(
    gpu: VirtualGpu, phase: str, dies_in: str | None, expected: Category
) -> None:
    tape = gpu.tape
    tape.set_phase(phase, 1)
    _op(tape, "aten::mul", "layer")
    row = tape.alloc(512, 512, 512)
    if dies_in is not None:
        tape.set_phase(dies_in, 1)
        tape.free(row)
    assert _category(gpu) is expected


@pytest.mark.parametrize(
    ("name", "module", "phase", "expected"),
    [
        ("aten::_to_copy", "", "between", Category.INPUT),
        ("aten::_to_copy", "", "setup", Category.INPUT),
        ("aten::_to_copy", "embed", "between", Category.OTHER),
        ("aten::_to_copy", "", "forward", Category.ACTIVATION),
        ("aten::mul", "", "between", Category.OTHER),
    ],
)
def test_copies_outside_modules_are_inputs(
    gpu: VirtualGpu, name: str, module: str, phase: str, expected: Category
) -> None:
    gpu.tape.set_phase(phase, 1)
    _op(gpu.tape, name, module)
    gpu.tape.alloc(512, 512, 512)
    assert _category(gpu) is expected


def test_what_a_cache_of_transformers_takes_is_cache(gpu: VirtualGpu) -> None:
    gpu.tape.set_phase("evaluation", 1)
    _op(gpu.tape, "aten::cat", "layer", "transformers/cache_utils.py:99 in update")
    gpu.tape.alloc(512, 512, 512)
    _op(gpu.tape, "aten::cat", "layer", "transformers/modeling.py:1 in forward")
    gpu.tape.alloc(512, 512, 512)
    assert _category(gpu, 0) is Category.KV_CACHE
    assert _category(gpu, 1) is Category.ACTIVATION


def test_a_mark_wins(gpu: VirtualGpu) -> None:
    gpu.tape.set_phase("forward", 1)
    _op(gpu.tape, "aten::mul")
    gpu.tape.alloc(512, 512, 512, int(Category.PARAMETER))
    assert _category(gpu) is Category.PARAMETER


def test_evaluation_is_called_inference_only_without_training(gpu: VirtualGpu) -> None:
    gpu.tape.set_phase("evaluation", 1)
    assert [p.name for p in build_trace(gpu, trained=False, meta={}).phases] == [
        "setup", "inference",
    ]  # fmt: skip
    assert [p.name for p in build_trace(gpu, trained=True, meta={}).phases] == [
        "setup", "evaluation",
    ]  # fmt: skip


def test_every_column_arrives(gpu: VirtualGpu) -> None:
    tape = gpu.tape
    tape.stream = 3
    _op(tape, "aten::mul", "layer", "train.py:5 in main")
    tape.alloc(100, 90, 120)
    tape.event(RECORD_STREAM, 0, 7)
    tape.event(SYNC)
    gpu.guess("zeta", "last")
    gpu.guess("alpha", "first")
    trace: Trace = build_trace(gpu, trained=True, meta={"a": 1})
    ops, allocs = trace.ops, trace.allocs
    assert trace.names[ops.name[0]] == "aten::mul"
    assert trace.modules[ops.module[0]] == "layer"
    assert trace.lines[ops.line[0]] == "train.py:5 in main"
    assert trace.names[ops.rate[0]] == "float32"
    assert (ops.flops[0], ops.moved_bytes[0], ops.seconds[0], ops.stream[0]) == (10, 20, 0.5, 3)
    assert (allocs.low_bytes[0], allocs.likely_bytes[0], allocs.high_bytes[0]) == (90, 100, 120)
    assert (allocs.op[0], allocs.stream[0]) == (0, 3)
    assert list(trace.event_kind) == [
        Event.PHASE, Event.OP, Event.ALLOC, Event.RECORD_STREAM, Event.SYNC,
    ]  # fmt: skip
    assert list(trace.event_extra) == [0, 0, 0, 7, 0]
    assert [guess.kind for guess in trace.guesses] == ["alpha", "zeta"]
    assert trace.meta == {"a": 1}
    assert trace.event_kind.dtype == np.uint8


def test_an_empty_tape_is_a_trace(gpu: VirtualGpu) -> None:
    trace = build_trace(gpu, trained=False, meta={})
    assert len(trace.ops.name) == len(trace.allocs.likely_bytes) == 0
    assert list(trace.event_kind) == [Event.PHASE]
