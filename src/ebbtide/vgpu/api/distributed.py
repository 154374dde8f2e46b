"""`torch.distributed` with one process: a group whose collectives copy.

DistributedDataParallel runs as it is, with PyTorch's own reducer, so its gradient
buckets are counted. More than one process is refused: the virtual GPU is one GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch
import torch.distributed
from torch.futures import Future

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.api.surface import CUDA, Surface
from ebbtide.vgpu.patches import PatchSet

dist: Any = torch.distributed
_NAME = "ebbtide"
# NCCL 2.29.3, pinned by PyTorch (.ci/docker/ci_commit_pins/nccl.txt @ 0baa077).
_NCCL = (2 << 32) | (29 << 16) | 3


def _done(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future)


def _flat(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for item in tensors for tensor in _flat(item)]


def _copy(outputs: Any, inputs: Any) -> Any:
    for output, value in zip(_flat(outputs), _flat(inputs), strict=False):
        output.detach().copy_(value.detach().view_as(output))
    return _done(outputs)


if dist.is_available():

    class LocalGroup(dist.ProcessGroup):  # type: ignore[misc]
        """A process group of one: reducing changes nothing, gathering copies."""

        def __init__(self, asked: str) -> None:
            super().__init__(0, 1)
            self.asked = asked

        def getBackendName(self) -> str:
            """The name the program gave."""
            return self.asked

        @property
        def group_name(self) -> str:
            """The name by which PyTorch files it."""
            return str(dist.distributed_c10d._world.pg_names[self])

        @property
        def pg_name(self) -> str:
            """The same."""
            return self.group_name

        def __repr__(self) -> str:
            return f"<LocalGroup standing in for {self.asked}>"

        def _keep(self, tensors: Any, *options: Any, **named: Any) -> Any:
            return _done(tensors)

        def _gather(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
            return _copy(outputs, inputs)

        def barrier(self, *options: Any, **named: Any) -> Any:
            """Nobody to wait for."""
            return _done(None)

        def _refuse(self, *options: Any, **named: Any) -> Any:
            raise VirtualGpuError("send and recv need a second process; the virtual GPU has one.")

        allreduce = allreduce_coalesced = broadcast = reduce = _keep
        allgather = gather = scatter = reduce_scatter = alltoall = _gather
        all_gather_single = reduce_scatter_single = all_to_all_single = _gather
        # Their names before torch 2.12.
        _allgather_base = _reduce_scatter_base = alltoall_base = _gather
        allgather_into_tensor_coalesced = reduce_scatter_tensor_coalesced = _gather
        all_gather_single_coalesced = reduce_scatter_single_coalesced = _gather
        send = recv = recv_anysource = _refuse


def world_size_of(world_size: int, init_method: str | None) -> int:
    """How many processes `init_process_group` would join: argument, URL, environment."""
    if world_size > 0:
        return world_size
    if init_method is not None:
        found = parse_qs(urlparse(init_method).query).get("world_size")
        if found:
            return int(found[0])
    return int(os.environ.get("WORLD_SIZE", "1"))


def _init(vgpu: Surface, original: Callable[..., None]) -> Callable[..., None]:
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        **options: Any,
    ) -> None:
        size = world_size_of(world_size, init_method)
        if size != 1:
            raise VirtualGpuError(
                f"torch.distributed was initialised with {size} processes; the virtual GPU "
                "models one GPU with one process. Run the script with a world size of 1."
            )
        asked = str(backend or "nccl").lower()
        vgpu.guess(
            "distributed",
            f"torch.distributed ({asked}) with one process: collectives only copy, and the "
            "memory of NCCL's own buffers is not counted",
        )

        def create(*_: Any) -> Any:
            return LocalGroup(asked)

        dist.Backend._plugins[_NAME.upper()] = dist.Backend._BackendPlugin(create, False)
        original(backend=_NAME, rank=0, world_size=1, store=dist.HashStore())

    return init_process_group


def _get_backend(original: Callable[..., str]) -> Callable[..., str]:
    def get_backend(group: Any = None) -> str:
        found = group if group is not None else dist.distributed_c10d._get_default_group()
        return found.asked if isinstance(found, LocalGroup) else original(group)

    return get_backend


def _register(patches: PatchSet) -> None:
    """Make `Backend` know our name, and nothing of it remain."""
    backend = dist.Backend
    patches.set(backend, _NAME.upper(), _NAME)
    patches.set(backend, "backend_list", [*backend.backend_list, _NAME])
    patches.set_item(backend.backend_type_map, _NAME, dist.ProcessGroup.BackendType.CUSTOM)
    patches.set_item(backend.backend_capability, _NAME, ["cpu", "cuda"])
    patches.set_item(backend._plugins, _NAME.upper(), None)


def _one_device() -> dict[str, Callable[..., Any]]:
    """What `torch.nn.DataParallel` and `torch.cuda.comm` call, for the one device there is."""
    return {
        "_scatter": lambda tensor, devices, *_: (tensor.to(CUDA),),
        "_gather": lambda tensors, dim, destination: torch.cat(list(tensors), dim or 0),
        "_broadcast": lambda tensor, devices: [tensor.to(CUDA)],
        "_broadcast_coalesced": lambda tensors, devices, size: [[t.to(CUDA) for t in tensors]],
    }


def _leave_group() -> None:
    if dist.is_initialized() and isinstance(dist.group.WORLD, LocalGroup):
        dist.destroy_process_group()


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Replace process groups by one of a single process."""
    if not dist.is_available():
        return
    c10d = dist.distributed_c10d
    _register(patches)
    # A program that does not end its group leaves it here, before the names go.
    patches.on_undo(_leave_group)
    patches.everywhere(
        [
            (c10d.init_process_group, _init(vgpu, c10d.init_process_group)),
            (c10d.get_backend, _get_backend(c10d.get_backend)),
            (c10d.is_nccl_available, lambda: True),
        ]
    )
    # Compares shapes between processes through the tensors' own memory.
    parallel = torch.nn.parallel.distributed
    for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
        patches.set(parallel, name, lambda *args, **kwargs: None)
    patches.set(torch._C, "_nccl_version", lambda: _NCCL)
    patches.set(torch._C, "_nccl_version_suffix", lambda: b"")
    patches.set_all(torch._C, _one_device())
    # Reads the GPU's own timers.
    patches.set(dist.Logger, "set_runtime_stats_and_log", lambda self: None)
