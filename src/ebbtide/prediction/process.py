"""What a process takes on a GPU: reserved memory and the CUDA context, as a range.

Three replays, for the low, the likely and the high size of every library workspace.
The likely one meets the GPU's limit as torch would: the allocator gives its cached
blocks back before it fails, so a workload can fit although it would reserve more on
a larger GPU. Where it does not fit, the figures are those of a GPU without a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from ebbtide.gpus import Gpu, context_bytes
from ebbtide.prediction.family import Sizes
from ebbtide.prediction.replaying import (
    History,
    Limit,
    Replay,
    history,
    least_sizes,
    live_peak,
    replay,
)
from ebbtide.trace.model import Ints, Trace
from ebbtide.units import Range, parse_release
from ebbtide.vgpu.allocator import AllocatorConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A GPU and what its driver takes.

    Attributes:
        gpu: its specification.
        context_bytes: what a process holds beside the allocator: the CUDA context.
    """

    gpu: Gpu
    context_bytes: Range

    @classmethod
    def of(cls, gpu: Gpu, torch_version: str) -> Device:
        """`gpu` as a process of that torch finds it, such as ``"2.13.0+cpu"``.

        Raises:
            UsageError: that is no version.
        """
        return cls(gpu=gpu, context_bytes=context_bytes(gpu, parse_release(torch_version)))

    @property
    def usable_bytes(self) -> int:
        """What the GPU has for a process."""
        return self.gpu.usable_bytes

    @property
    def limit(self) -> Limit:
        """What the allocator may use, with the likely context."""
        return Limit(usable_bytes=self.usable_bytes, context_bytes=self.context_bytes.likely)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A workload on a GPU.

    Attributes:
        fits: whether the likely replay came to its end on this GPU.
        limited: whether it did so only by giving cached blocks back.
        likely: that replay; one without a limit where it does not fit.
        reserved_bytes: the peak of reserved.
        process_bytes: with the CUDA context.
    """

    fits: bool
    limited: bool
    likely: Replay
    reserved_bytes: Range
    process_bytes: Range


class Replays:
    """Replays of one workload without a limit, each done once however many GPUs ask.

    Args:
        trace: the events; their sizes are given with each question.
        config: the settings of ``PYTORCH_ALLOC_CONF``.
    """

    def __init__(self, trace: Trace, config: AllocatorConfig | None = None) -> None:
        self.trace = trace
        self.config = config
        self._done: dict[bytes, Replay] = {}
        self._histories: dict[bytes, History] = {}

    def unlimited(self, sizes: Ints) -> Replay:
        """The replay on a GPU whose memory never ends."""
        key = _key(sizes)
        if key not in self._done:
            self._done[key] = replay(self.trace, sizes, config=self.config)
        return self._done[key]

    def history(self, sizes: Ints) -> History:
        """The same, looked at after every event."""
        key = _key(sizes)
        if key not in self._histories:
            self._histories[key] = history(self.trace, sizes, config=self.config)
            self._done[key] = self._histories[key].total
        return self._histories[key]

    def limited(self, sizes: Ints, device: Device) -> Replay | None:
        """The replay within the memory of `device`; None where it runs out."""
        if live_peak(self.trace, least_sizes(self.trace, sizes)) > device.limit.room_bytes:
            return None
        run = replay(self.trace, sizes, limit=device.limit, config=self.config)
        return run if run.out_of_memory is None else None

    def outcome(self, sizes: Sizes, device: Device) -> Outcome:
        """What happens with these sizes on `device`."""
        likely = self.unlimited(sizes.likely)
        fits, squeezed = likely.peak_reserved_bytes <= device.limit.room_bytes, None
        if not fits:
            squeezed = self.limited(sizes.likely, device)
            fits, likely = squeezed is not None, squeezed or likely
        figure = likely.peak_reserved_bytes
        # Fragmentation is not monotone: a smaller workspace may reserve more. Each convolution
        # also has an engine that needs none.
        ends = [
            self.unlimited(column).peak_reserved_bytes
            for column in (sizes.low, sizes.high, least_sizes(self.trace, sizes.low))
            if not np.array_equal(column, sizes.likely)
        ]
        reserved = Range(min([figure, *ends]), figure, max([figure, *ends]))
        return Outcome(
            fits=fits,
            limited=squeezed is not None,
            likely=likely,
            reserved_bytes=reserved,
            process_bytes=reserved + device.context_bytes,
        )


def _key(sizes: Ints) -> bytes:
    return blake2b(sizes.tobytes(), digest_size=16).digest()
