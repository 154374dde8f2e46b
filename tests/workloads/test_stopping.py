"""When a workload has shown enough."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ebbtide.workloads.stopping import STOP_SIGNAL, Stopper, StopWorkload

DATA = torch.arange(100)


def made(trained: bool = True, **kwargs: Any) -> tuple[Stopper, Any]:
    """A stopper, and the storages whose peak it watches."""
    storages = SimpleNamespace(peak_bytes=0)
    gpu = SimpleNamespace(mode=SimpleNamespace(storages=storages))
    recorder = SimpleNamespace(trained=trained)
    return Stopper(cast(Any, gpu), cast(Any, recorder), **kwargs), storages


def test_enough_steps_end_the_data_and_more_end_the_script() -> None:
    stopper, _ = made(steps=3)
    stopper.after_step(2)
    assert not stopper.enough
    stopper.after_step(3)
    assert stopper.enough
    stopper.after_step(4)
    with pytest.raises(StopWorkload):
        stopper.after_step(5)


def test_the_end_is_no_exception_that_scripts_catch() -> None:
    assert not issubclass(StopWorkload, Exception)


def forwards(stopper: Stopper, storages: Any, count: int, grows: int = 0) -> int:
    """How many of `count` forwards ran until the script was ended."""
    for forward in range(count):
        storages.peak_bytes += grows
        try:
            stopper.after_forward(forward + 1)
        except StopWorkload:
            return forward + 1
    return count


def test_inference_is_enough_once_it_needs_no_more() -> None:
    stopper, storages = made(trained=False)
    forwards(stopper, storages, 8)
    assert stopper.enough
    assert forwards(stopper, storages, 1000) < 70


def test_inference_that_needs_more_each_time_goes_on() -> None:
    stopper, storages = made(trained=False)
    assert forwards(stopper, storages, 500, grows=1) == 500
    assert not stopper.enough


def test_forwards_of_training_do_not_make_it_enough() -> None:
    stopper, storages = made(trained=True)
    forwards(stopper, storages, 20)
    assert not stopper.enough


def test_a_step_makes_forwards_new() -> None:
    stopper, storages = made(trained=True, steps=1000)
    for step in range(20):
        assert forwards(stopper, storages, 40) == 40  # many micro-batches
        stopper.after_step(step)


def test_who_swallows_the_end_is_noticed() -> None:
    calls: list[int] = []
    stopper, _ = made(steps=1, swallowed=lambda: calls.append(1))
    for step in range(3, 6):
        with pytest.raises(StopWorkload):
            stopper.after_step(step)
    assert calls == []
    with pytest.raises(StopWorkload):
        stopper.after_step(6)
    assert calls == [1]


def served(stopper: Stopper, ends_after: int = 10_000) -> int:
    """Batches of a loader; it is enough after some of them."""
    count = 0
    for _ in DataLoader(DATA, batch_size=1):  # type: ignore[arg-type]
        count += 1
        if count == ends_after:
            stopper.enough = True
    return count


def test_a_loader_in_use_ends_at_once_and_later_ones_give_two() -> None:
    stopper, _ = made()
    with stopper.watching():
        assert served(stopper) == 100
        assert served(stopper, ends_after=5) == 5
        assert served(stopper) == 2
        assert served(stopper) == 2


def test_loaders_are_put_back() -> None:
    before = _BaseDataLoaderIter.__next__
    stopper, _ = made()
    with pytest.raises(KeyError), stopper.watching():
        assert _BaseDataLoaderIter.__next__ is not before
        raise KeyError
    assert _BaseDataLoaderIter.__next__ is before
    stopper.enough = True
    assert served(stopper) == 100


def test_the_signal_ends_the_script() -> None:
    stopper, _ = made()
    handler = signal.getsignal(STOP_SIGNAL)
    with pytest.raises(StopWorkload), stopper.watching():
        signal.pthread_kill(threading.get_ident(), STOP_SIGNAL)
        signal.pause()
    assert stopper.timed_out
    assert signal.getsignal(STOP_SIGNAL) == handler


def test_a_thread_that_is_ended_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []

    def hook(ended: Any) -> None:
        told.append(ended.exc_type)

    monkeypatch.setattr(threading, "excepthook", hook)
    stopper, _ = made(steps=0)

    def fails() -> None:
        raise KeyError

    with stopper.watching():
        for work in (lambda: stopper.after_step(5), fails):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert told == [KeyError]
    assert threading.excepthook is hook


def test_a_signal_that_came_early_is_kept() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
    try:
        stopper, _ = made()
        signal.pthread_kill(threading.get_ident(), STOP_SIGNAL)
        assert not stopper.timed_out
        with pytest.raises(StopWorkload), stopper.watching():
            signal.pause()
        assert STOP_SIGNAL in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_programs_keep_the_signals_they_use() -> None:
    assert STOP_SIGNAL not in (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
