"""What a virtual GPU writes down while it runs: the raw columns of a trace.

Plain lists, because one row is appended for every operation and allocation and
nothing else may cost time there. `ebbtide.trace` turns a finished tape into a
`Trace`. Event codes are `Event` of `ebbtide.trace.model`, repeated here as
plain integers because that room lies above this one; a test holds them equal.
"""

from __future__ import annotations

ALLOC, FREE, OP, PHASE, EMPTY_CACHE, RECORD_STREAM, SYNC = range(7)

# Categories that are known at once; the others are set when the trace is made.
UNKNOWN, WORKSPACE = -1, 8


class Names:
    """Strings numbered in the order in which they first appear; 0 is the empty one."""

    __slots__ = ("index", "items")

    def __init__(self) -> None:
        self.index: dict[str, int] = {"": 0}
        self.items: list[str] = [""]

    def of(self, text: str) -> int:
        """The number of `text`."""
        number = self.index.get(text)
        if number is None:
            number = self.index[text] = len(self.items)
            self.items.append(text)
        return number


class Tape:
    """Columns of operations, allocations and events, and where the program is now."""

    def __init__(self) -> None:
        self.names = Names()
        self.modules = Names()
        self.lines = Names()
        self.phases: list[tuple[str, int]] = []
        # Operations.
        self.op_name: list[int] = []
        self.op_module: list[int] = []
        self.op_line: list[int] = []
        self.op_phase: list[int] = []
        self.op_stream: list[int] = []
        self.op_rate: list[int] = []
        self.op_flops: list[int] = []
        self.op_moved: list[int] = []
        self.op_seconds: list[float] = []
        # Allocations: likely, low and high bytes.
        self.alloc_bytes: list[int] = []
        self.alloc_low: list[int] = []
        self.alloc_high: list[int] = []
        self.alloc_fallback: list[int] = []
        self.alloc_op: list[int] = []
        self.alloc_stream: list[int] = []
        self.alloc_category: list[int] = []
        # Events.
        self.kind: list[int] = []
        self.arg: list[int] = []
        self.extra: dict[int, int] = {}
        # Where the program is.
        self.stream = 0
        self.phase = 0
        self.op = -1
        self.set_phase("setup", 0)

    def set_phase(self, name: str, step: int) -> None:
        """Everything from here on belongs to this phase; a change back opens a new row."""
        if self.phases and self.phases[-1] == (name, step):
            return
        self.phases.append((name, step))
        self.phase = len(self.phases) - 1
        self.kind.append(PHASE)
        self.arg.append(self.phase)

    def alloc(
        self,
        likely: int,
        low: int,
        high: int,
        category: int = UNKNOWN,
        fallback: int | None = None,
    ) -> int:
        """Memory was taken by the current operation. Returns its row.

        `fallback` is what the operation does with where `likely` bytes do not fit.
        """
        row = len(self.alloc_bytes)
        self.alloc_bytes.append(likely)
        self.alloc_low.append(low)
        self.alloc_high.append(high)
        self.alloc_fallback.append(likely if fallback is None else fallback)
        self.alloc_op.append(self.op)
        self.alloc_stream.append(self.stream)
        self.alloc_category.append(category)
        self.kind.append(ALLOC)
        self.arg.append(row)
        return row

    def lower(self, row: int, nbytes: int) -> None:
        """The operation made do with `nbytes`."""
        self.alloc_bytes[row] = self.alloc_low[row] = nbytes

    def void(self, row: int) -> None:
        """The allocation of `row` was refused: it took nothing."""
        for column in (self.alloc_bytes, self.alloc_low, self.alloc_high, self.alloc_fallback):
            column[row] = 0

    def free(self, row: int) -> None:
        """The memory of `row` was given back."""
        self.kind.append(FREE)
        self.arg.append(row)

    def again(self, row: int) -> None:
        """The operation of `row` once more, on the current stream; it allocates nothing."""
        new = len(self.op_name)
        for column in (
            self.op_name,
            self.op_module,
            self.op_line,
            self.op_rate,
            self.op_flops,
            self.op_moved,
            self.op_seconds,
        ):
            column.append(column[row])  # type: ignore[arg-type]
        self.op_phase.append(self.phase)
        self.op_stream.append(self.stream)
        self.op = new
        self.kind.append(OP)
        self.arg.append(new)

    def event(self, kind: int, arg: int = 0, extra: int | None = None) -> None:
        """Any other event."""
        if extra is not None:
            self.extra[len(self.kind)] = extra
        self.kind.append(kind)
        self.arg.append(arg)
