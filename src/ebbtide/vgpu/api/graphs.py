"""CUDA graphs: what is captured runs eagerly once, and a replay takes its time again.

A captured graph keeps its memory in a pool of its own; here the tensors share
the common pool, so memory is that of the capture without the graph's own hold.
The report lists that as a guess.
"""

from __future__ import annotations

from typing import Any

import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.api.surface import Surface
from ebbtide.vgpu.patches import PatchSet


class Capture:
    """Whether a capture is going on, and the pools given out; one for a virtual GPU."""

    vgpu: Surface
    going_on = False
    pools = 0

    @classmethod
    def new_pool(cls) -> tuple[int, int]:
        """A pool nobody has."""
        cls.pools += 1
        return (0, cls.pools)


class CUDAGraph:
    """Stands in for `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: tuple[int, int] | None = None
        self._captured = False
        self._rows = range(0)

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **options: Any
    ) -> None:
        """Start a capture."""
        if Capture.going_on:
            raise RuntimeError("CUDA graphs must not be captured inside one another.")
        Capture.going_on = True
        Capture.vgpu.guess(
            "cuda-graph", "a CUDA graph was captured: run eagerly, in the common memory pool"
        )
        first = len(Capture.vgpu.tape.op_name)
        self._rows = range(first, first)
        self._pool = pool if pool is not None else Capture.new_pool()

    def capture_end(self) -> None:
        """End the capture."""
        Capture.going_on, self._captured = False, True
        self._rows = range(self._rows.start, len(Capture.vgpu.tape.op_name))

    def instantiate(self) -> None:
        """Nothing to make."""

    def replay(self) -> None:
        """Run the captured work again: it allocates nothing."""
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for row in self._rows:
            Capture.vgpu.tape.again(row)

    def reset(self) -> None:
        """Forget the capture."""
        self._captured = False

    def pool(self) -> tuple[int, int]:
        """The handle of its memory pool."""
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def enable_debug_mode(self) -> None:
        """Nothing to debug."""

    def debug_dump(self, debug_path: str) -> None:
        """There is no graph to draw."""
        raise VirtualGpuError("A CUDA graph on the virtual GPU has no nodes to dump.")

    def __enter__(self) -> CUDAGraph:
        self.capture_begin()
        return self

    def __exit__(self, *error: Any) -> None:
        self.capture_end()


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Replace the graph class and the queries about captures."""
    Capture.vgpu, Capture.going_on = vgpu, False
    graphs = torch.cuda.graphs
    patches.set(graphs, "_cuda_isCurrentStreamCapturing", lambda: Capture.going_on)
    patches.set(torch._C, "_cuda_isCurrentStreamCapturing", lambda: Capture.going_on)
    patches.set(graphs, "_graph_pool_handle", Capture.new_pool)
    # The default capture stream is made once and kept by the class.
    patches.set(graphs.graph, "default_capture_stream", None)
    patches.everywhere([(graphs.CUDAGraph, CUDAGraph)])
