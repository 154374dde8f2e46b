"""Memory and speed by batch size: the curve, the largest batch that fits, the best one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ebbtide.prediction.family import Family
from ebbtide.prediction.parts import CurvePoint
from ebbtide.prediction.process import Device, Replays
from ebbtide.prediction.replaying import least_sizes, live_peak
from ebbtide.prediction.steptime import step_seconds_at

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
"""The batch sizes of a curve, where nobody asks for others."""

BATCH_CAP = 65_535
"""Where the search for the largest batch stops.

Kernels that put the batch on the grid's y or z dimension cannot launch beyond
(CUDA C++ Programming Guide, technical specifications: at most 65,535 blocks in y
and z), and no memory model knows which ones do.
"""

_KNEE = 0.95
_MANY_OVER = 4
_SHOWN_OVER = 2


def curve(
    family: Family,
    device: Device,
    *,
    batches: Sequence[int] = BATCHES,
    replays: Replays | None = None,
) -> tuple[CurvePoint, ...]:
    """The curve at `batches`, by a replay of the allocator at each.

    A batch whose sizes are beyond counting (2**62 bytes) is left out, as is each
    one after it.

    Args:
        family: the workload at any batch size.
        device: the GPU.
        batches: samples in a step, ascending.
        replays: replays of ``family.trace`` that several GPUs share.
    """
    replays = replays if replays is not None else Replays(family.trace)
    points = []
    for batch in batches:
        sizes = family.sizes(batch)
        if sizes is None:
            break
        outcome = replays.outcome(sizes, device)
        step_s = step_seconds_at(family, batch, device.gpu)
        points.append(
            CurvePoint(
                batch=batch,
                allocated_bytes=outcome.likely.peak_allocated_bytes,
                reserved_bytes=outcome.likely.peak_reserved_bytes,
                process_bytes=outcome.process_bytes,
                fits=outcome.fits,
                step_s=step_s,
                samples_per_s=batch / step_s if step_s else None,
            )
        )
    return tuple(points)


def largest_batch(
    family: Family,
    device: Device,
    *,
    points: Sequence[CurvePoint] = (),
    cap: int = BATCH_CAP,
    replays: Replays | None = None,
) -> int:
    """The largest batch that fits `device` by the likely figure; 0 where not even one does.

    What is alive at once bounds it from above without a replay, and the curve gives
    a guess; from there replays under the GPU's limit search in growing strides, then
    by halves. Fragmentation is not monotone, so what is certain is that the answer
    fits and the next batch does not, not that none above fits.

    Args:
        family: the workload at any batch size.
        device: the GPU.
        points: points of the curve that are known already.
        cap: where the search stops.
        replays: replays of ``family.trace``; its allocator settings hold.
    """
    known = replays if replays is not None else Replays(family.trace)

    def fits(batch: int) -> bool:
        sizes = family.sizes(batch)
        return sizes is not None and known.limited(sizes.likely, device) is not None

    low = max((point.batch for point in points if point.fits and point.batch <= cap), default=0)
    high = _bound(family, device, cap)
    high = min([high, *(p.batch - 1 for p in points if not p.fits and p.batch > low)])
    return _search(fits, low, high, _guess(points, device))


def _search(fits: Callable[[int], bool], low: int, high: int, guess: int | None) -> int:
    """The largest of `low` to `high` that fits, where `low` does; few probes if `guess` is near."""
    probe = high if guess is None else guess
    stride = max(1, probe // 64)  # about as far as fragmentation leads a guess astray
    rising: bool | None = None
    while low < high:
        probe = min(max(probe, low + 1), high)
        if fits(probe):
            low = probe
            turned, rising = rising is False, True
        else:
            high = probe - 1
            turned, rising = rising is True, False
        if turned:
            break
        probe = low + stride if rising else high - stride + 1
        stride *= 2
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _guess(points: Sequence[CurvePoint], device: Device) -> int | None:
    """Where the line through the two points nearest to the GPU's limit crosses it."""
    room = device.limit.room_bytes
    near = sorted(points, key=lambda point: abs(point.reserved_bytes - room))[:2]
    if len(near) < 2 or near[0].reserved_bytes == near[1].reserved_bytes:
        return None
    one, other = near
    slope = (other.batch - one.batch) / (other.reserved_bytes - one.reserved_bytes)
    return max(1, int(one.batch + (room - one.reserved_bytes) * slope))


def best_batch(points: Sequence[CurvePoint], share: float = _KNEE) -> int | None:
    """The knee: the smallest batch that fits with `share` of the best samples a second that fit.

    None where no batch fits or no time is known.
    """
    speeds = {
        point.batch: point.samples_per_s
        for point in points
        if point.fits and point.samples_per_s is not None
    }
    if not speeds:
        return None
    enough = share * max(speeds.values())
    return min(batch for batch, speed in speeds.items() if speed >= enough)


def telling(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The points to show: of many that do not fit, the first two; the rest tell nothing new."""
    over = [point for point in points if not point.fits]
    if len(over) <= _MANY_OVER:
        return tuple(points)
    return tuple(point for point in points if point.fits or point in over[:_SHOWN_OVER])


def _bound(family: Family, device: Device, cap: int) -> int:
    """The largest batch up to `cap` whose live bytes alone would fit."""
    room = device.limit.room_bytes
    low, high = 0, cap
    while low < high:
        middle = (low + high + 1) // 2
        sizes = family.sizes(middle)
        if sizes is None:
            high = middle - 1
            continue
        least = least_sizes(family.trace, sizes.likely)
        if live_peak(family.trace, least) <= room:
            low = middle
        else:
            high = middle - 1
    return low
