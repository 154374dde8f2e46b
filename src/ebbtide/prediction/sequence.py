"""The longest sequence that fits, from traces at three lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ebbtide.prediction.curve import largest_batch
from ebbtide.prediction.family import DoNotAlignError, family
from ebbtide.prediction.process import Device, Replays
from ebbtide.prediction.result import Prediction
from ebbtide.trace.model import Guess, Trace


def with_largest_seq(
    predictions: Sequence[Prediction],
    trace: Trace,
    others: Sequence[Trace],
    devices: Sequence[Device],
) -> tuple[Prediction, ...]:
    """The predictions with `seq`, and with `largest_seq` where there are traces to tell.

    Attention that holds its scores takes memory with the square of the length, so a line
    through two lengths would not do.

    Args:
        predictions: at the batch of all these traces, one for each device.
        trace: the one that they are of; its meta data state ``seq`` and ``longest_seq``.
        others: the same at two other lengths; none for no answer.
        devices: GPUs of the class on which was traced.
    """
    seq = trace.meta.get("seq")
    if seq is None:
        return tuple(predictions)
    known = [replace(each, seq=seq) for each in predictions]
    if len(others) < 2:
        return tuple(known)
    lengths = {each.meta["seq"]: each for each in (trace, *others)}
    try:
        grown = family(lengths)
    except DoNotAlignError as error:
        guess = Guess(
            kind="no-seq", text=f"The largest sequence could not be found: {error}", count=1
        )
        return tuple(replace(each, guesses=(*each.guesses, guess)) for each in known)
    cap = trace.meta["longest_seq"]
    replays = Replays(grown.trace)
    listed = ", ".join(str(length) for length in sorted(lengths))
    guess = Guess(
        kind="seq-curve",
        text=f"The largest sequence is drawn from traces at {listed} tokens; "
        f"the model has positions for {cap}.",
        count=1,
    )
    return tuple(
        replace(
            each,
            largest_seq=largest_batch(grown, device, cap=cap, replays=replays),
            seq_cap=cap,
            guesses=(*each.guesses, guess),
        )
        for each, device in zip(known, devices, strict=True)
    )
