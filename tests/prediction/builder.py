"""Builds small traces by hand, so that a test knows every byte of the answer."""

from __future__ import annotations

import numpy as np

from ebbtide.gpus import find
from ebbtide.trace.model import AllocTable, Category, Event, Guess, OpTable, Phase, Trace
from ebbtide.vgpu.clock import seconds_of
from ebbtide.vgpu.costs import Cost


class Builder:
    """Events in order; `build` makes the trace."""

    def __init__(self, gpu: str = "l4") -> None:
        self.gpu = gpu
        self.strings: dict[str, dict[str, int]] = {"name": {}, "module": {}, "line": {}}
        self.phases: list[Phase] = []
        self.ops: list[tuple[int, ...]] = []
        self.allocs: list[tuple[int, int, int, int, int, int]] = []
        self.events: list[tuple[int, int, int]] = []
        self.guesses: list[Guess] = []

    def _string(self, table: str, text: str) -> int:
        return self.strings[table].setdefault(text, len(self.strings[table]))

    def phase(self, name: str, step: int) -> None:
        self.phases.append(Phase(name=name, step=step))
        self.events.append((Event.PHASE, len(self.phases) - 1, 0))

    def op(
        self,
        name: str,
        module: str = "",
        line: str = "",
        *,
        flops: int = 0,
        moved: int = 0,
        rate: str = "bfloat16",
        stream: int = 0,
    ) -> int:
        self.ops.append(
            (
                self._string("name", name),
                self._string("module", module),
                self._string("line", line),
                len(self.phases) - 1,
                stream,
                flops,
                moved,
                self._string("name", rate),
            )
        )
        self.events.append((Event.OP, len(self.ops) - 1, 0))
        return len(self.ops) - 1

    def alloc(
        self,
        size: int,
        category: Category = Category.ACTIVATION,
        *,
        low: int | None = None,
        high: int | None = None,
        op: int | None = None,
        stream: int = 0,
    ) -> int:
        own = len(self.ops) - 1 if op is None else op
        self.allocs.append(
            (
                size,
                size if low is None else low,
                size if high is None else high,
                category,
                own,
                stream,
            )
        )
        self.events.append((Event.ALLOC, len(self.allocs) - 1, 0))
        return len(self.allocs) - 1

    def free(self, *rows: int) -> None:
        for row in rows:
            self.events.append((Event.FREE, row, 0))

    def event(self, kind: Event, arg: int = 0, extra: int = 0) -> None:
        self.events.append((kind, arg, extra))

    def build(self) -> Trace:
        ops = np.array(self.ops, np.int64).reshape(-1, 8).T
        names, gpu = tuple(self.strings["name"]), find(self.gpu)
        allocs = np.array(self.allocs, np.int64).reshape(-1, 6).T
        events = np.array(self.events, np.int64).reshape(-1, 3).T
        return Trace(
            gpu=self.gpu,
            torch_version="2.13.0",
            names=names,
            modules=tuple(self.strings["module"]),
            lines=tuple(self.strings["line"]),
            phases=tuple(self.phases),
            ops=OpTable(
                name=ops[0],
                module=ops[1],
                line=ops[2],
                phase=ops[3],
                stream=ops[4],
                flops=ops[5],
                moved_bytes=ops[6],
                rate=ops[7],
                seconds=np.array(
                    [seconds_of(gpu, Cost(row[5], row[6], names[row[7]])) for row in self.ops],
                    np.float64,
                ),
            ),
            allocs=AllocTable(
                likely_bytes=allocs[0],
                low_bytes=allocs[1],
                high_bytes=allocs[2],
                fallback_bytes=allocs[0],
                category=allocs[3],
                op=allocs[4],
                stream=allocs[5],
            ),
            event_kind=events[0].astype(np.uint8),
            event_arg=events[1],
            event_extra=events[2],
            guesses=tuple(self.guesses),
        )


def training(
    batch: int,
    *,
    layers: int = 3,
    width: int = 1024,
    steps: int = 3,
    workspace: tuple[int, int, int] = (0, 0, 0),
) -> Trace:
    """A stack of linear layers with Adam: `steps` whole steps, as PyTorch would run them.

    Parameters are ``4 * width**2`` bytes a layer, activations ``4 * 64 * batch * width``.
    `workspace` is low, likely and high bytes of one in each layer's forward.
    """
    b = Builder()
    weight, hidden = 4 * width * width, 4 * 64 * batch * width
    b.phase("setup", 0)
    params = []
    for layer in range(layers):
        b.op("aten::empty", f"layers.{layer}", "model.py:10")
        params.append(b.alloc(weight, Category.PARAMETER))
    states: list[int] = []
    for step in range(1, steps + 1):
        b.phase("forward", step)
        b.op("aten::_to_copy", "", "train.py:7", moved=hidden)
        batch_row = b.alloc(hidden, Category.INPUT)
        saved = []
        for layer in range(layers):
            b.op(
                "aten::mm",
                f"layers.{layer}",
                "model.py:14",
                flops=2 * 64 * batch * width * width,
                moved=2 * hidden + weight,
            )
            if any(workspace):
                low, likely, high = workspace
                b.free(b.alloc(likely, Category.WORKSPACE, low=low, high=high))
            saved.append(b.alloc(hidden, Category.ACTIVATION))
        b.phase("backward", step)
        grads, upstream = [], None
        for layer in reversed(range(layers)):
            work, moved = 4 * 64 * batch * width * width, 3 * hidden + 2 * weight
            b.op(
                "aten::mm",
                f"layers.{layer}",
                "train.py:9",
                flops=work,
                moved=moved,
            )
            grads.append(b.alloc(weight, Category.GRADIENT))
            new = b.alloc(hidden, Category.TEMPORARY)
            b.free(saved[layer])
            if upstream is not None:
                b.free(upstream)
            upstream = new
        b.free(upstream if upstream is not None else batch_row)
        b.phase("optimizer", step)
        b.op(
            "aten::_foreach_addcdiv_",
            "",
            "train.py:10",
            moved=7 * layers * weight,
        )
        if not states:
            states = [b.alloc(weight, Category.OPTIMIZER_STATE) for _ in range(2 * layers)]
        scratch = [b.alloc(weight, Category.TEMPORARY) for _ in range(layers)]
        b.free(*scratch, *grads, batch_row)
    return b.build()
