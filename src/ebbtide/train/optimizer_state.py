"""Keep the state of an optimizer in host memory, and bring it over part by part at each step.

The update runs on the device with torch's own code, so its bits are those of a plain step.
`optimizer.state` holds the tensors in host memory under the keys that it always has.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ebbtide.train.optimizer_hooks import AroundStep
from ebbtide.train.optimizer_spent import SpentGradient
from ebbtide.train.optimizer_twin import OptimizerError, check_separable, step_parameters

_active: weakref.WeakSet[Optimizer] = weakref.WeakSet()


class HostState:
    """A context in which the state of `optimizer` lives on the host; within itself it does nothing.

    Args:
        optimizer: any whose parameters can be stepped one at a time.
        chunk_bytes: gradients of up to this many bytes are stepped together; one parameter at
            least.
        pinned: page-locked host memory, where the device is a real GPU.

    Raises:
        OptimizerError: on entry, where it would not be exact, with the reason.
    """

    def __init__(
        self, optimizer: Optimizer, *, chunk_bytes: int = 64 << 20, pinned: bool = False
    ) -> None:
        if chunk_bytes < 0:
            raise OptimizerError(f"chunk_bytes is {chunk_bytes}; give 0 or more bytes.")
        self.optimizer, self.chunk_bytes, self.pinned = optimizer, chunk_bytes, pinned
        self._around: AroundStep | None = None
        self._loading: list[Any] = []
        self._loaded: dict[Any, Any] = {}
        self._numbers: list[Any] = []
        # Names of state that a plain step has on the host too: Adam's count of steps.
        self._stays: dict[Tensor, set[str]] = {}
        self._hidden: list[tuple[Tensor, Tensor]] = []
        self._depth = 0

    def __enter__(self) -> HostState:
        if self.optimizer in _active:
            self._depth += self._around is not None
            return self
        check_separable(self.optimizer)
        self._around = AroundStep(self.optimizer, self._before, self._after)
        self._loading = [
            self.optimizer.register_load_state_dict_pre_hook(self._take_loaded),
            self.optimizer.register_load_state_dict_post_hook(self._put_loaded),
        ]
        _active.add(self.optimizer)
        for p in self._parameters():
            if p in self.optimizer.state:
                self._keep(p, self.optimizer.state[p])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._around is None:
            return
        if self._depth:
            self._depth -= 1
            return
        for handle in (self._around, *self._loading):
            handle.remove()
        self._around = None
        _active.discard(self.optimizer)
        self._after()
        for p in self._parameters():
            if p in self.optimizer.state:
                self.optimizer.state[p] = self._brought(p)

    def step(self, parameters: Sequence[Tensor]) -> None:
        """Update `parameters`, which have gradients: bring their state, step, write it back.

        Fits `OptimizerInBackward(optimizer, step=...)`.
        """
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for p in parameters:
            if p in self.optimizer.state:
                state[p] = self._brought(p)
        step_parameters(self.optimizer, parameters, state)
        for p in parameters:
            if p in state:
                self._keep(p, state[p])

    def host_bytes(self) -> int:
        """Host memory that the state takes now; torch rounds pinned blocks to powers of two."""
        sizes = [
            leaf.untyped_storage().nbytes()
            for p in self._parameters()
            for leaf in pytree.tree_leaves(self.optimizer.state.get(p, {}))
            if isinstance(leaf, Tensor)
        ]
        if self.pinned:
            sizes = [1 << max(0, size - 1).bit_length() for size in sizes]
        return sum(sizes)

    def fetch(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A tensor of the state, on `device`."""
        return tensor.to(device, non_blocking=self.pinned)

    def store(self, tensor: Tensor, place: Tensor | None) -> Tensor:
        """`tensor` in host memory: in `place`, where it was before, or a new one."""
        if place is None and self.pinned and tensor.is_cuda and torch.cuda.is_available():
            place = torch.empty_like(tensor, device="cpu", pin_memory=True)
        return tensor.to("cpu") if place is None else place.copy_(tensor)

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _brought(self, parameter: Tensor) -> dict[str, Any]:
        """The state of `parameter` where a plain step has it."""
        stays = self._stays.get(parameter, ())
        return {
            name: value
            if name in stays
            else pytree.tree_map_only(Tensor, lambda t: self.fetch(t, parameter.device), value)
            for name, value in self.optimizer.state[parameter].items()
        }

    def _keep(self, parameter: Tensor, state: dict[str, Any]) -> None:
        """Put `state`, as a plain step left it, into host memory."""
        before = self.optimizer.state.get(parameter, {})
        kept = {}
        for name, value in state.items():
            leaves, spec = pytree.tree_flatten(value)
            places, _ = pytree.tree_flatten(before.get(name))
            if len(places) != len(leaves):
                places = [None] * len(leaves)
            if any(isinstance(t, Tensor) and t.device != parameter.device for t in leaves):
                self._stays.setdefault(parameter, set()).add(name)
                kept[name] = value
                continue
            kept[name] = pytree.tree_unflatten(
                [self._put(leaf, place) for leaf, place in zip(leaves, places, strict=True)],
                spec,
            )
        self.optimizer.state[parameter] = kept

    def _put(self, leaf: Any, place: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        same = (
            isinstance(place, Tensor)
            and place is not leaf
            and place.device.type == "cpu"
            and (place.shape, place.dtype) == (leaf.shape, leaf.dtype)
        )
        return self.store(leaf, place if same else None)

    def _before(self) -> None:
        """Step all that has a gradient, and hide the gradients from the step that follows."""
        ready = [
            p
            for p in self._parameters()
            if p.grad is not None and not isinstance(p.grad, SpentGradient)
        ]
        for chunk in self._chunks(ready):
            self.step(chunk)
        self._hidden = [(p, p.grad) for p in ready if p.grad is not None]
        for p, _ in self._hidden:
            p.grad = None

    def _after(self) -> None:
        for p, gradient in self._hidden:
            p.grad = gradient
        self._hidden = []

    def _chunks(self, parameters: list[Tensor]) -> Iterator[list[Tensor]]:
        chunk: list[Tensor] = []
        size = 0
        for p in parameters:
            if chunk and size + p.nbytes > self.chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(p)
            size += p.nbytes
        if chunk:
            yield chunk

    def _take_loaded(self, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        """What is loaded goes to the host straight: torch would bring all of it over first."""
        numbers = [n for group in given["param_groups"] for n in group["params"]]
        known = dict.fromkeys(numbers)
        self._loaded = {n: value for n, value in given["state"].items() if n in known}
        rest = {n: value for n, value in given["state"].items() if n not in known}
        self._numbers = numbers
        return {**given, "state": rest}

    def _put_loaded(self, optimizer: Optimizer) -> None:
        numbers = iter(self._numbers)
        for group in optimizer.param_groups:
            on_device = group.get("fused") or group.get("capturable")
            for p in group["params"]:
                self._stays[p] = set() if on_device else {"step"}
                state = self._loaded.get(next(numbers))
                if state is not None:
                    optimizer.state[p] = {
                        name: _converted(p, value, name == "step", bool(on_device))
                        for name, value in state.items()
                    }
        self._loaded = {}


def _converted(parameter: Tensor, value: Any, counts: bool, on_device: bool) -> Any:
    """A copy on the host, in the dtype that `Optimizer.load_state_dict` gives it."""
    dtype = parameter.dtype if parameter.is_floating_point() else None
    if counts:
        dtype = torch.float32 if on_device else None
    return pytree.tree_map_only(Tensor, lambda t: t.to("cpu", dtype or t.dtype, copy=True), value)
