"""Threads and child processes of a program that runs on the virtual GPU.

Dispatch modes belong to a thread: a new thread takes its parent's along. A
forked worker leaves it, because CUDA cannot be used there either.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.api.surface import LOCK, Surface, active
from ebbtide.vgpu.patches import PatchSet


@contextlib.contextmanager
def joined(vgpu: Surface) -> Iterator[None]:
    """Put the current thread on the virtual GPU."""
    torch.autograd.set_multithreading_enabled(False)
    torch._C._set_only_lift_cpu_tensors(True)
    with vgpu.mode:
        yield


def _one_at_a_time(vgpu: Surface, patches: PatchSet) -> None:
    """From now on operations of several threads wait for each other."""
    kind = type(vgpu.mode)
    dispatch = kind.__torch_dispatch__

    def locked(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            return dispatch(*args, **kwargs)

    patches.set(kind, "__torch_dispatch__", locked)


def _start(vgpu: Surface, patches: PatchSet, original: Callable[..., None]) -> Callable[..., None]:
    alone = True

    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        nonlocal alone
        if active(vgpu):
            if alone:  # most programs never start a thread, and a lock for each operation costs
                alone = False
                _one_at_a_time(vgpu, patches)
            run = self.run

            def run_joined() -> None:
                with joined(vgpu):
                    run()

            self.run = run_joined  # type: ignore[method-assign]
        original(self)

    return start


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run without the virtual GPU; named and pickled like the original."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


def _spawn(vgpu: Surface, name: str) -> Callable[..., Any]:
    """`torch.multiprocessing.spawn` of one process calls the function in this one."""

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *rest: Any, **options: Any) -> None:
        if nprocs != 1:
            raise VirtualGpuError(
                f"torch.multiprocessing.{name} was asked for {nprocs} processes; the virtual GPU "
                "models one GPU with one process. Run the script with a world size of 1."
            )
        vgpu.guess("spawn", f"torch.multiprocessing.{name} of 1 process: called in place")
        fn(0, *args)

    return spawn


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Let new threads join, and keep spawned processes here."""
    patches.wrap(threading.Thread, "start", lambda original: _start(vgpu, patches, original))
    names = ("spawn", "start_processes")
    functions = [getattr(torch.multiprocessing, name, None) for name in names]
    patches.everywhere(
        [
            (function, _spawn(vgpu, name))
            for name, function in zip(names, functions, strict=True)
            if callable(function)
        ]
    )
