"""Every kind of module and many functions run on the virtual GPU, with the shapes of the CPU.

The reference is PyTorch itself on real CPU tensors, run before the virtual GPU is on.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.vgpu.sweep_cases import ALL, Case

from ebbtide.vgpu.virtual_gpu import VirtualGpu

Meta = list[tuple[tuple[int, ...], torch.dtype]]

_CONTEXTS: dict[str, Callable[[], Any]] = {
    "fp32": contextlib.nullcontext,
    "fp16": lambda: torch.autocast("cuda"),
    "bf16": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
_TRAINING = ("fp32", "fp16", "bf16")
# In a cluster that no target falls into nothing is trained.
_SOME_WITHOUT_GRADIENT = {"AdaptiveLogSoftmaxWithLoss"}
# Not known from outside, and listed as such.
_GUESSED = {
    "FractionalMaxPool3d": set(),
    "TransformerEncoder-padded": {"nested"},
    "linalg.lstsq": {"unknown-op"},
}
_PAIRS = [
    (name, variant)
    for name, case in ALL.items()
    for variant in _CONTEXTS
    if variant not in case.skip
]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _meta(value: Any) -> Meta:
    return [(tuple(tensor.shape), tensor.dtype) for tensor in _tensors(value)]


def _quietly(function: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of PyTorch's own
        return function(*args)


@pytest.fixture(scope="module")
def references() -> dict[str, Meta]:
    """Shapes and dtypes of every case on the CPU."""
    return {
        name: _meta(_quietly(case.make(), *(make() for make in case.inputs)))
        for name, case in ALL.items()
    }


@pytest.fixture(scope="module")
def shared_gpu(references: dict[str, Meta]) -> Iterator[VirtualGpu]:
    """One virtual GPU for all cases; the references come first, on real tensors."""
    with VirtualGpu("a100-80gb") as virtual:
        yield virtual


def _run(case: Case, variant: str) -> tuple[Any, list[torch.Tensor]]:
    """The outputs on the GPU, and the leaves that should get gradients."""
    function = case.make()
    leaves: list[torch.Tensor] = []
    if isinstance(function, torch.nn.Module):
        function.cuda()
        function.train(variant in _TRAINING)
    inputs = [make() for make in case.inputs]
    inputs = [item.cuda() if isinstance(item, torch.Tensor) else item for item in inputs]
    if variant in _TRAINING:
        floats = [i for i in inputs if isinstance(i, torch.Tensor) and i.is_floating_point()]
        leaves = [leaf.requires_grad_() for leaf in floats[:1]]
    with _CONTEXTS[variant]():
        out = _quietly(function, *inputs)
    if variant in _TRAINING and isinstance(function, torch.nn.Module):
        leaves += [p for p in function.parameters() if p.requires_grad]
    return out, leaves


@pytest.mark.parametrize(("name", "variant"), _PAIRS)
def test_it_runs_as_on_the_cpu(
    shared_gpu: VirtualGpu, references: dict[str, Meta], name: str, variant: str
) -> None:
    shared_gpu.guesses.clear()
    out, leaves = _run(ALL[name], variant)
    tensors, expected = _tensors(out), references[name]
    assert all(tensor.is_cuda for tensor in tensors)
    if variant == "fp32":
        assert _meta(out) == expected
    elif variant in _TRAINING:
        assert [shape for shape, _ in _meta(out)] == [shape for shape, _ in expected]
    if variant in _TRAINING:
        differentiable = [tensor for tensor in tensors if tensor.requires_grad]
        assert differentiable
        sum(t.abs().float().sum() for t in differentiable).backward()
        for leaf in leaves:
            if leaf.grad is None and name in _SOME_WITHOUT_GRADIENT:
                continue
            assert leaf.grad is not None
            assert leaf.grad.is_cuda
            assert (leaf.grad.shape, leaf.grad.dtype) == (leaf.shape, leaf.dtype)
    assert set(shared_gpu.guesses) <= _GUESSED.get(name, set())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["Linear", "Conv2d", "ConvTranspose2d", "Bilinear", "MultiheadAttention"]
)
def test_autocast_computes_in_half(shared_gpu: VirtualGpu, name: str, dtype: torch.dtype) -> None:
    out, _ = _run(ALL[name], "fp16" if dtype is torch.float16 else "bf16")
    # `bilinear` is promoted, not cast.
    assert _tensors(out)[0].dtype is (torch.float32 if name == "Bilinear" else dtype)


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "MSELoss", "Softmax", "LayerNorm", "cumsum"])
def test_autocast_keeps_these_in_float32(shared_gpu: VirtualGpu, name: str) -> None:
    out, _ = _run(ALL[name], "fp16")
    assert _tensors(out)[0].dtype is torch.float32


def test_nothing_is_left_when_all_cases_are_gone(shared_gpu: VirtualGpu) -> None:
    gc.collect()  # cycles of the modules' own
    shared_gpu.mode.library_state.clear()
    assert shared_gpu.mode.storages.live_rows() == []
