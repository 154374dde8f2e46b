"""Random generators of the virtual GPU, and the host's left as they were.

Nothing random is computed on the virtual GPU; its generators keep a seed and an
offset, so that saving, restoring and forking their state works.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from ebbtide.vgpu.api.surface import CUDA, Surface
from ebbtide.vgpu.patches import PatchSet

_DEFAULT_SEED = 67280421310721  # c10::detail::default_rng_seed_val, ATen/core/Generator.h
_WORD = 8  # the state is a seed and an offset of 8 bytes each (CUDAGeneratorImpl.cpp)


_Base: Any = torch._C.Generator


class _Accepts(type(_Base)):  # type: ignore[misc]
    """`isinstance(x, torch.Generator)` holds for PyTorch's own generators too."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)


class Generator(_Base, metaclass=_Accepts):  # type: ignore[misc]
    """`torch.Generator`: PyTorch's own for the CPU, one without numbers for `cuda`."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """PyTorch's own unless the device is `cuda` or a number."""
        index = isinstance(device, int)
        if not index and torch.device(device).type != "cuda":
            return torch._C.Generator(device)
        return super().__new__(cls)

    def __init__(self, device: Any = "cpu") -> None:
        self._seed, self._offset = _DEFAULT_SEED, 0

    @property
    def device(self) -> torch.device:
        """Always the virtual GPU."""
        return CUDA

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed; the offset starts at 0."""
        self._seed, self._offset = int(seed) % 2**64, 0
        return self

    def seed(self) -> int:
        """Set a random seed and return it."""
        self._seed, self._offset = random.SystemRandom().getrandbits(53), 0
        return self._seed

    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    def get_offset(self) -> int:
        """The Philox offset."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Set the Philox offset."""
        self._offset = offset

    def get_state(self) -> torch.Tensor:
        """Seed and offset: uint8, shape (16,), on the CPU."""
        data = self._seed.to_bytes(_WORD, "little") + self._offset.to_bytes(_WORD, "little")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Restore what `get_state` gave.

        Raises:
            RuntimeError: as PyTorch, for a state of another size.
            TypeError: as PyTorch, for a state that is not a byte tensor on the CPU.
        """
        if new_state.dtype is not torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        data = bytes(new_state.tolist())
        if len(data) not in (_WORD, 2 * _WORD):
            raise RuntimeError("RNG state is wrong size")
        self._seed = int.from_bytes(data[:_WORD], "little")
        self._offset = int.from_bytes(data[_WORD:], "little")
        return self

    def clone_state(self) -> Generator:
        """A generator of the same state."""
        other = Generator(CUDA)
        other._seed, other._offset = self._seed, self._offset
        return other

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, state: Generator) -> Generator:
        """Take the state of another generator."""
        self._seed, self._offset = state._seed, state._offset
        return self

    def __reduce__(self) -> Any:
        return (_restore, (self._seed, self._offset))

    def __repr__(self) -> str:
        return f"<torch._C.Generator device={self.device} seed={self._seed}>"


def _restore(seed: int, offset: int) -> Generator:
    made: Generator = Generator(CUDA)
    made._seed, made._offset = seed, offset
    return made


def _keep_host_state(patches: PatchSet) -> None:
    """Draws made on the virtual GPU must not shift those made afterwards."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    patches.on_undo(lambda: torch.set_rng_state(torch_state))
    patches.on_undo(lambda: random.setstate(python_state))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy_state = numpy.random.get_state()
        patches.on_undo(lambda: numpy.random.set_state(numpy_state))


def install(vgpu: Surface, patches: PatchSet) -> None:
    """Give the virtual GPU its generators."""
    _keep_host_state(patches)
    patches.everywhere([(torch.Generator, Generator)])
    patches.set(torch.cuda, "default_generators", (Generator(CUDA),))
