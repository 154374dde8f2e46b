"""CUDA streams and events, on the virtual clock.

Replaces `torch.cuda.Stream` and `torch.cuda.Event`, and the device-neutral
`torch.Stream` and `torch.Event` where they are asked for `cuda`.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import torch

from ebbtide.vgpu.api.surface import CUDA, Surface
from ebbtide.vgpu.patches import PatchSet

_CUDA_TYPE = 1  # c10::DeviceType::CUDA
_PER_POOL = 32  # streams of a priority before they are handed out again (CUDAStream.cpp)
_PRIORITIES = 4  # pools; a lower number is served first
# Opaque handles; nothing lies behind them.
_STREAM_HANDLE, _EVENT_HANDLE = 0x5600_0000_0000, 0x5700_0000_0000


def _kind(arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    device = named.get("device", arguments[0] if arguments else None)
    if device is None:
        return "cuda" if named.get("device_type", _CUDA_TYPE) == _CUDA_TYPE else "other"
    return "cuda" if isinstance(device, int) else torch.device(device).type


# Typed as anything: the replacements take each other where the originals take originals.
_BaseStream: Any = torch._C.Stream
_BaseEvent: Any = torch._C.Event


class _AcceptsBase(type(_BaseStream)):  # type: ignore[misc]
    """Makes `isinstance` as wide as PyTorch's own class."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.__mro__[1])  # the class that C++ knows


class StreamPool:
    """Numbers streams as PyTorch does: 32 to a priority, then from the first again.

    The identifier packs the index, the kind (1 and more: a pool) and a set lowest bit
    (c10/cuda/CUDAStream.cpp), so the first stream of a program is number 3.
    """

    def __init__(self) -> None:
        self._next = [0] * _PRIORITIES

    def take(self, priority: int) -> int:
        """The identifier of the next stream of this priority."""
        pool = min(max(-priority, 0), _PRIORITIES - 1)
        index = self._next[pool] % _PER_POOL
        self._next[pool] += 1
        return index << 5 | (pool + 1) << 1 | 1


class Timeline:
    """What streams and events share: the virtual GPU and the numbers given out."""

    vgpu: Surface
    pool: StreamPool
    events: itertools.count[int]

    @classmethod
    def start(cls, vgpu: Surface) -> None:
        """Begin afresh for a virtual GPU."""
        cls.vgpu, cls.pool, cls.events = vgpu, StreamPool(), itertools.count(1)


class Stream(_BaseStream, metaclass=_AcceptsBase):  # type: ignore[misc]
    """A stream of the virtual GPU; the interface is that of `torch.cuda.Stream`."""

    def __new__(cls, device: Any = None, priority: int = 0, **named: Any) -> Any:
        """One of the pool, or the one that the keywords name; PyTorch's own off `cuda`."""
        if device is not None and _kind((device,), {}) != "cuda":
            return torch._C.Stream(device, priority=priority, **named)
        number = named.get("stream_id")
        if number is None:
            external = named.get("stream_ptr")
            number = Timeline.pool.take(priority) if external is None else external
        return super().__new__(cls, stream_id=number, device_index=0, device_type=_CUDA_TYPE)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pool = (self.stream_id >> 1 & 0xF) - 1
        self.priority = -pool if self.stream_id else 0

    @property
    def cuda_stream(self) -> int:
        """The handle; the default stream's is 0."""
        return _STREAM_HANDLE | self.stream_id if self.stream_id else 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Lowest and highest priority."""
        return (0, 1 - _PRIORITIES)

    def query(self) -> bool:
        """Whether all its work is done."""
        return self.record_event().query()

    def synchronize(self) -> None:
        """Wait for its work."""
        Timeline.vgpu.clock.synchronize(self.stream_id)

    def wait_event(self, event: Event) -> None:
        """Later work waits for `event`."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Later work waits for what `stream` has been given so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        made = Event() if event is None else event
        made.record(self)
        return made

    def is_capturing(self) -> bool:
        """Whether a graph is being captured on it."""
        return torch.cuda.is_current_stream_capturing()

    def __enter__(self) -> Stream:
        self._outer = Timeline.vgpu.stream
        Timeline.vgpu.stream = self.stream_id
        return self

    def __exit__(self, *error: Any) -> None:
        Timeline.vgpu.stream = self._outer

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, torch._C.Stream) and (
            (self.stream_id, self.device) == (other.stream_id, other.device)
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream made by another library; known by its handle."""

    def __new__(cls, stream_ptr: int, device: Any = None, **named: Any) -> Any:
        """The stream of that handle."""
        return super().__new__(cls, stream_ptr=stream_ptr)


class Event(_BaseEvent, metaclass=_AcceptsBase):  # type: ignore[misc]
    """An event of the virtual GPU; the interface is that of `torch.cuda.Event`."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """An event not yet recorded; PyTorch's own off `cuda`."""
        if "device" in named and _kind((), named) != "cuda":
            return torch._C.Event(*arguments, **named)
        return super().__new__(cls, device=CUDA)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        # torch.cuda.Event takes enable_timing first, torch.Event the device.
        first = arguments[0] if arguments and isinstance(arguments[0], bool) else False
        self.enable_timing = bool(named.get("enable_timing", first))
        self._number: int | None = None

    @property
    def cuda_event(self) -> int:
        """The handle; 0 before the first recording."""
        return _EVENT_HANDLE | self._number if self._number is not None else 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    @property
    def device(self) -> torch.device:
        """Always the virtual GPU."""
        return CUDA

    def record(self, stream: Stream | None = None) -> None:
        """Note the moment at which the work given to `stream` so far is done."""
        self._number = next(Timeline.events)
        number = Timeline.vgpu.stream if stream is None else stream.stream_id
        Timeline.vgpu.clock.record(self._number, number)

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of `stream` wait for this event."""
        if self._number is not None:
            number = Timeline.vgpu.stream if stream is None else stream.stream_id
            Timeline.vgpu.clock.wait(number, self._number)

    def query(self) -> bool:
        """Whether it has happened.

        The virtual clock stands still while the host only asks, so a "no" moves it to
        the event: a loop that polls comes to its end.
        """
        clock = Timeline.vgpu.clock
        if self._number is None or clock.query(self._number):
            return True
        clock.synchronize(event=self._number)
        return False

    def synchronize(self) -> None:
        """Wait for it on the host."""
        if self._number is not None:
            Timeline.vgpu.clock.synchronize(event=self._number)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the virtual clock between this event and `end_event`.

        Raises:
            ValueError: as PyTorch, if either was made without `enable_timing` or has
                not been recorded.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._number is None or end_event._number is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        Timeline.vgpu.guess("time", "time between events was read: the virtual clock's")
        return 1e3 * Timeline.vgpu.clock.elapsed(self._number, end_event._number)

    def ipc_handle(self) -> bytes:
        """A handle for another process: there is none to take it."""
        return bytes(64)

    def __repr__(self) -> str:
        if self._number is None:
            return "<torch.cuda.Event uninitialized>"
        return f"<torch.cuda.Event {self.cuda_event:#x}>"


def _functions(vgpu: Surface) -> dict[str, Any]:
    def current(device: int = 0) -> tuple[int, int, int]:
        return (vgpu.stream, 0, _CUDA_TYPE)

    def set_stream(stream_id: int, device_index: int = 0, device_type: int = _CUDA_TYPE) -> None:
        vgpu.stream = stream_id

    def set_accelerator_stream(stream: Stream) -> None:
        vgpu.stream = stream.stream_id

    return {
        "_cuda_getCurrentStream": current,
        "_cuda_getDefaultStream": lambda device=0: (0, 0, _CUDA_TYPE),
        "_cuda_getStreamFromExternal": lambda pointer, device=0: (pointer, 0, _CUDA_TYPE),
        "_cuda_setStream": set_stream,
        "_cuda_getCurrentRawStream": lambda device=0: (
            _STREAM_HANDLE | vgpu.stream if vgpu.stream else 0
        ),
        "_accelerator_getStream": lambda device=0: Stream(stream_id=vgpu.stream),
        "_accelerator_setStream": set_accelerator_stream,
    }


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Replace streams and events."""
    Timeline.start(vgpu)
    patches.on_undo(lambda: setattr(vgpu, "stream", 0))
    patches.set_all(torch._C, _functions(vgpu))
    streams = torch.cuda.streams
    patches.everywhere(
        [
            (streams.Stream, Stream),
            (streams.ExternalStream, ExternalStream),
            (streams.Event, Event),
        ]
    )
    patches.set(torch, "Stream", Stream)
    patches.set(torch, "Event", Event)
