from __future__ import annotations

import pytest
from tests.prediction.builder import training
from tests.prediction.samples import device
from tests.prediction.test_replaying import scattered

from ebbtide.errors import UsageError
from ebbtide.gpus import context_bytes, find
from ebbtide.prediction.family import Sizes
from ebbtide.prediction.process import Device, Replays
from ebbtide.trace.model import Trace
from ebbtide.units import MiB, Range


def own_sizes(trace: Trace) -> Sizes:
    table = trace.allocs
    return Sizes(likely=table.likely_bytes, low=table.low_bytes, high=table.high_bytes)


def test_device_of_a_torch_version() -> None:
    made = Device.of(find("l4"), "2.13.0+cpu")
    assert made.context_bytes == context_bytes(find("l4"), (2, 13))
    assert made.usable_bytes == find("l4").usable_bytes
    assert made.limit.room_bytes == made.usable_bytes - made.context_bytes.likely


@pytest.mark.parametrize("text", ["", "two", "v2.13"])
def test_no_version(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no version of torch\. Write for example"):
        Device.of(find("l4"), text)


def test_exact_where_no_workspace_is_a_range() -> None:
    trace = training(4)
    outcome = Replays(trace).outcome(own_sizes(trace), device("l4", Range.exact(7)))
    peak = outcome.likely.peak_reserved_bytes
    assert outcome.reserved_bytes == Range.exact(peak)
    assert outcome.process_bytes == Range.exact(peak + 7)
    assert outcome.fits
    assert not outcome.limited


def test_workspaces_and_context_widen_the_range() -> None:
    trace = training(4, workspace=(0, 64 * MiB, 256 * MiB))
    outcome = Replays(trace).outcome(own_sizes(trace), device("l4"))
    assert outcome.reserved_bytes.low < outcome.reserved_bytes.likely < outcome.reserved_bytes.high
    assert outcome.process_bytes.low == outcome.reserved_bytes.low + 200 * MiB
    assert outcome.process_bytes.high == outcome.reserved_bytes.high + 450 * MiB


def tight(room: int) -> Device:
    t4 = find("t4")
    return Device(gpu=t4, context_bytes=Range.exact(t4.usable_bytes - room))


def test_fits_by_giving_cached_blocks_back() -> None:
    trace = scattered().build()
    outcome = Replays(trace).outcome(own_sizes(trace), tight(80 * MiB))
    assert (outcome.fits, outcome.limited) == (True, True)
    assert outcome.likely.retries == 1
    assert outcome.process_bytes.likely <= find("t4").usable_bytes


def test_what_does_not_fit_has_the_figures_of_a_roomy_gpu() -> None:
    trace = scattered().build()
    outcome = Replays(trace).outcome(own_sizes(trace), tight(60 * MiB))
    assert (outcome.fits, outcome.limited) == (False, False)
    assert outcome.likely.peak_reserved_bytes == 104 * MiB


def test_replays_are_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = training(4, workspace=(0, 1, MiB))
    replays = Replays(trace)
    replays.history(own_sizes(trace).likely)
    first = replays.outcome(own_sizes(trace), device("l4"))

    def again(*args: object, **kwargs: object) -> None:
        raise AssertionError("replayed again")

    monkeypatch.setattr("ebbtide.prediction.process.replay", again)
    monkeypatch.setattr("ebbtide.prediction.process.history", again)
    replays.history(own_sizes(trace).likely)
    assert replays.outcome(own_sizes(trace), device("a100-80gb")).reserved_bytes == (
        first.reserved_bytes
    )


def test_what_is_alive_rules_out_without_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = training(4)
    replays = Replays(trace)
    calls: list[object] = []
    monkeypatch.setattr("ebbtide.prediction.process.replay", lambda *a, **k: calls.append(a))
    assert replays.limited(trace.allocs.likely_bytes, tight(MiB)) is None
    assert calls == []
