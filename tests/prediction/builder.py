"""Builds small traces by hand, so that a test knows every byte of the answer."""

from __future__ import annotations

import numpy as np

from ebbtide.trace.model import AllocTable, Category, Event, Guess, OpTable, Phase, Trace


class Builder:
    """Events in order; `build` makes the trace."""

    def __init__(self, gpu: str = "l4") -> None:
        self.gpu = gpu
        self.strings: dict[str, dict[str, int]] = {"name": {}, "module": {}, "line": {}}
        self.phases: list[Phase] = []
        self.ops: list[tuple[int, int, int, int, int, int, int, float]] = []
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
        seconds: float = 0.0,
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
                seconds,
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
        ops = np.array(self.ops, np.float64).reshape(-1, 8).T
        allocs = np.array(self.allocs, np.int64).reshape(-1, 6).T
        events = np.array(self.events, np.int64).reshape(-1, 3).T
        exact = [np.array([row[i] for row in self.ops], np.int64) for i in range(7)]
        return Trace(
            gpu=self.gpu,
            torch_version="2.13.0",
            names=tuple(self.strings["name"]),
            modules=tuple(self.strings["module"]),
            lines=tuple(self.strings["line"]),
            phases=tuple(self.phases),
            ops=OpTable(
                name=exact[0],
                module=exact[1],
                line=exact[2],
                phase=exact[3],
                stream=exact[4],
                flops=exact[5],
                moved_bytes=exact[6],
                seconds=ops[7],
            ),
            allocs=AllocTable(
                likely_bytes=allocs[0],
                low_bytes=allocs[1],
                high_bytes=allocs[2],
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
        b.op("aten::_to_copy", "", "train.py:7", seconds=1e-5)
        batch_row = b.alloc(hidden, Category.INPUT)
        saved = []
        for layer in range(layers):
            b.op(
                "aten::mm",
                f"layers.{layer}",
                "model.py:14",
                flops=2 * 64 * batch * width * width,
                moved=2 * hidden + weight,
                seconds=max(2 * 64 * batch * width * width / 60e12, (2 * hidden + weight) / 300e9),
            )
            if any(workspace):
                low, likely, high = workspace
                b.free(b.alloc(likely, Category.WORKSPACE, low=low, high=high))
            saved.append(b.alloc(hidden, Category.ACTIVATION))
        b.phase("backward", step)
        grads, upstream = [], None
        for layer in reversed(range(layers)):
            b.op("aten::mm", f"layers.{layer}", "train.py:9", flops=1, moved=1, seconds=2e-5)
            grads.append(b.alloc(weight, Category.GRADIENT))
            new = b.alloc(hidden, Category.TEMPORARY)
            b.free(saved[layer])
            if upstream is not None:
                b.free(upstream)
            upstream = new
        b.free(upstream if upstream is not None else batch_row)
        b.phase("optimizer", step)
        b.op("aten::_foreach_addcdiv_", "", "train.py:10", seconds=1e-4)
        if not states:
            states = [b.alloc(weight, Category.OPTIMIZER_STATE) for _ in range(2 * layers)]
        scratch = [b.alloc(weight, Category.TEMPORARY) for _ in range(layers)]
        b.free(*scratch, *grads, batch_row)
    return b.build()
