"""The composite around the kernels, on meta tensors and against CPU mathematics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide.vgpu.kernels.attention import Choice
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.sdpa import sdpa

AMPERE = KernelContext(capability=(8, 0), torch_version=(2, 13))


class Recorder(TorchDispatchMode):
    """Notes each operation with the shapes of its tensor arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
        self.calls.append((func.overloadpacket.__name__, shapes))
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@contextmanager
def recording() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


def qkv(
    *shape: int, dtype: torch.dtype = torch.float16, grad: bool = False, device: str = "meta"
) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype, device=device, requires_grad=grad) for _ in range(3)]


def test_flash_gets_the_tensors_as_they_are() -> None:
    with recording() as seen:
        out = sdpa(*qkv(2, 8, 128, 64), is_causal=True, context=AMPERE)
    assert set(seen.names) == {"empty", "_scaled_dot_product_flash_attention"}
    assert out.shape == (2, 8, 128, 64)


def test_flash_pads_odd_heads_to_eight() -> None:
    with recording() as seen:
        out = sdpa(*qkv(2, 8, 128, 62), context=AMPERE)
    assert seen.names.count("constant_pad_nd") == 3
    name, shapes = next(call for call in seen.calls if "flash" in call[0])
    assert name == "_scaled_dot_product_flash_attention"
    assert shapes == [(2, 8, 128, 64)] * 3
    assert out.shape == (2, 8, 128, 62)


def test_a_boolean_mask_is_converted_and_expanded() -> None:
    mask = torch.empty(2, 1, 128, 128, dtype=torch.bool, device="meta")
    with recording() as seen:
        sdpa(*qkv(2, 8, 128, 64), attn_mask=mask, context=AMPERE)
    kernel = "_scaled_dot_product_efficient_attention"
    assert [n for n in seen.names if n in {"logical_not", "where", "expand", kernel}] == [
        "logical_not",
        "where",
        "expand",
        kernel,
    ]
    shapes = dict(seen.calls)[kernel]
    assert shapes[-1] == (2, 8, 128, 128)


@pytest.mark.parametrize(("keys", "padded"), [(77, 80), (72, None)])
def test_a_mask_with_odd_rows_is_padded(keys: int, padded: int | None) -> None:
    q = torch.empty(2, 8, 16, 64, dtype=torch.float16, device="meta")
    k = torch.empty(2, 8, keys, 64, dtype=torch.float16, device="meta")
    mask = torch.empty(16, keys, dtype=torch.float16, device="meta")
    with recording() as seen:
        sdpa(q, k, k, attn_mask=mask, context=AMPERE)
    assert ("constant_pad_nd" in seen.names) is (padded is not None)
    if padded is not None:
        sliced = dict(seen.calls)["slice"]
        assert sliced[0] == (16, padded)


def test_logsumexp_is_kept_for_training_only() -> None:
    seen: list[torch.Size] = []
    for grad in (False, True):
        q, k, v = qkv(2, 8, 128, 64, dtype=torch.float32, grad=grad)
        out = sdpa(q, k, v, context=AMPERE)
        assert out.requires_grad is grad
        node = out.grad_fn
        if grad:
            assert node is not None
            seen.append(node._saved_log_sumexp.shape)  # type: ignore[attr-defined]
    assert seen == [torch.Size([2, 8, 128])]


def test_backward_reaches_every_input() -> None:
    q, k, v = qkv(2, 8, 128, 62, grad=True)
    sdpa(q, k, v, context=AMPERE).sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert tensor.grad.shape == tensor.shape


def test_cudnn_on_hopper() -> None:
    hopper = KernelContext(capability=(9, 0), torch_version=(2, 13), cudnn_version=92000)
    mask = torch.empty(128, 128, dtype=torch.bool, device="meta")
    with recording() as seen:
        out = sdpa(*qkv(2, 8, 128, 64), attn_mask=mask, context=hopper)
    assert seen.names[-1] == "_scaled_dot_product_cudnn_attention"
    assert out.shape == (2, 8, 128, 64)


def test_the_choice_is_told() -> None:
    told: list[Choice] = []
    sdpa(*qkv(2, 8, 128, 64), context=AMPERE, on_choice=told.append)
    assert [choice.backend for choice in told] == ["flash"]


def test_torchs_own_switches_are_asked() -> None:
    told: list[Choice] = []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        sdpa(*qkv(2, 8, 128, 64), context=AMPERE, on_choice=told.append)
    assert [choice.backend for choice in told] == ["math"]


@pytest.mark.parametrize("version", [(2, 4), (2, 13)])
@pytest.mark.parametrize("masked", ["", "boolean", "additive", "causal"])
def test_the_math_path_computes_attention(version: tuple[int, int], masked: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    mask: torch.Tensor | None = None
    if masked == "boolean":
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
    elif masked == "additive":
        mask = torch.randn(5, 5, dtype=torch.float64)
    ctx = KernelContext(capability=(8, 0), torch_version=version)
    causal = masked == "causal"
    got = sdpa(q, k, v, mask, is_causal=causal, context=ctx, enabled=frozenset({"math"}), scale=0.3)
    scores = q @ k.transpose(-2, -1) * 0.3
    if masked in {"boolean", "causal"}:
        scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -math.inf)
    elif mask is not None:
        scores = scores + mask
    torch.testing.assert_close(got, scores.softmax(-1) @ v)


def test_grouped_queries_on_the_math_path() -> None:
    q = torch.randn(1, 4, 6, 8, dtype=torch.float64)
    k = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    got = sdpa(q, k, k, enable_gqa=True, context=AMPERE, enabled=frozenset({"math"}))
    wide = k.repeat_interleave(2, dim=1)
    scores = q @ wide.transpose(-2, -1) / math.sqrt(8)
    torch.testing.assert_close(got, scores.softmax(-1) @ wide)


def test_dropout_on_the_old_math_path_keeps_the_shape() -> None:
    old = KernelContext(capability=(8, 0), torch_version=(2, 4))
    q = torch.randn(1, 2, 4, 8)
    out = sdpa(q, q, q, dropout_p=0.5, context=old, enabled=frozenset({"math"}), scale=-0.5)
    assert out.shape == q.shape
