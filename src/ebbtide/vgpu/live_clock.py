"""The virtual clock as the running program sees it.

Like `LiveMemory`, it is not in the way of the program: it replays the tape's
operations when the program asks for a time, records an event or waits.
"""

from __future__ import annotations

from ebbtide.gpus import Gpu
from ebbtide.vgpu.clock import LINKS, VirtualClock
from ebbtide.vgpu.tape import OP, SYNC, Tape


class LiveClock:
    """Answers `torch.cuda`'s questions about streams, events and time.

    Args:
        gpu: whose speeds to use.
        tape: what has happened.
    """

    def __init__(self, gpu: Gpu, tape: Tape) -> None:
        self._clock = VirtualClock(gpu)
        self._tape = tape
        self._done = 0

    def catch_up(self) -> VirtualClock:
        """Replay what has happened since the last question."""
        tape, clock = self._tape, self._clock
        kinds, args, names = tape.kind, tape.arg, tape.names.items
        while self._done < len(kinds):
            kind, row = kinds[self._done], args[self._done]
            self._done += 1
            if kind == SYNC:
                clock.synchronize()
            elif kind == OP:
                link = LINKS.get(names[tape.op_rate[row]])
                stream = tape.op_stream[row]
                if link is None:
                    clock.run(tape.op_seconds[row], stream)
                else:
                    direction, pinned = link
                    clock.copy(tape.op_moved[row], direction, pinned=pinned, stream=stream)
        return clock

    @property
    def now(self) -> float:
        """Host time in seconds."""
        return self.catch_up().now

    def copy(
        self, nbytes: int, direction: str, *, pinned: bool = False, stream: int = 0
    ) -> tuple[float, float]:
        """A copy that is on no tape; see `VirtualClock.copy`."""
        return self.catch_up().copy(nbytes, direction, pinned=pinned, stream=stream)

    def record(self, event: int, stream: int = 0) -> None:
        """Note when the work that `stream` has so far will be done."""
        self.catch_up().record(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Later work of `stream` waits for `event`."""
        self.catch_up().wait(stream, event)

    def query(self, event: int) -> bool:
        """Whether the event has happened by now."""
        return self.catch_up().query(event)

    def elapsed(self, start: int, end: int) -> float:
        """Seconds between two recorded events."""
        return self.catch_up().elapsed(start, end)

    def synchronize(self, stream: int | None = None, *, event: int | None = None) -> float:
        """The host waits: for a stream, an event, or everything. Returns the time then."""
        return self.catch_up().synchronize(stream, event=event)
