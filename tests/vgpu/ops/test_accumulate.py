"""The autograd engine sums in place where nobody else holds the first summand.

Which sums those are is what CUDA snapshots show: in the recorded training step of
`snap-wed-128` no sum of gradients has an allocation of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ebbtide.vgpu.tape import ALLOC, OP, Tape
from ebbtide.vgpu.virtual_gpu import VirtualGpu

WIDTH = 256


def allocations_by_op(tape: Tape, start: int) -> list[tuple[str, int]]:
    """Operation and how many allocations it made, from event `start` on."""
    out: list[list[object]] = []
    for kind, arg in zip(tape.kind[start:], tape.arg[start:], strict=True):
        if kind == OP:
            out.append([tape.names.items[tape.op_name[arg]], 0])
        elif kind == ALLOC and out:
            out[-1][1] += 1  # type: ignore[operator]
    return [(str(name), int(count)) for name, count in out]  # type: ignore[call-overload]


def backward(build: Callable[[Tensor], Tensor]) -> list[tuple[str, int]]:
    with VirtualGpu("l4") as gpu:
        x = torch.randn(4, WIDTH, device="cuda", requires_grad=True)
        loss = build(x * 1.0)
        start = len(gpu.tape.kind)
        loss.backward()
        return allocations_by_op(gpu.tape, start)


def sums(ops: list[tuple[str, int]]) -> list[int]:
    return [count for name, count in ops if name == "aten::add"]


def test_a_residual_gradient_is_summed_into_the_first() -> None:
    assert sums(backward(lambda x: (x + x.exp()).square().sum())) == [0]


def test_an_expanded_gradient_cannot_take_a_sum() -> None:
    """The gradient of a sum has one element's memory, whatever its shape."""
    assert sums(backward(lambda x: (x + x.exp()).sum())) == [1]


@pytest.mark.parametrize("uses", [2, 3, 5])
def test_every_further_use_is_summed_into_the_same_memory(uses: int) -> None:
    def build(x: Tensor) -> Tensor:
        total = x.exp()
        for power in range(2, uses + 1):
            total = total * (x / power)
        return total.sum()

    assert sums(backward(build)) == [0] * (uses - 1)


def test_memory_that_somebody_else_holds_is_left_alone() -> None:
    held: list[Tensor] = []

    def build(x: Tensor) -> Tensor:
        branch = x.exp()
        branch.register_hook(held.append)  # the gradient of the branch outlives its use
        y = x * 2.0
        y.register_hook(held.append)
        return (branch + y).sum() + (x + 0.0).sum()

    ops = backward(build)
    assert sum(sums(ops)) <= len(sums(ops))
    assert all(tensor.shape == (4, WIDTH) for tensor in held)


def test_a_sum_in_somebodys_own_backward_allocates() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 2.0

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            return (grads[0] * 1.0) + grads[0]

    def build(x: Tensor) -> Tensor:
        out: Tensor = Twice.apply(x)  # type: ignore[no-untyped-call]
        return out.sum()

    assert sums(backward(build)) == [1]


def test_the_maximum_scatters_its_gradient_into_zeros() -> None:
    ops = backward(lambda x: x.max(dim=-1)[0].sum())
    assert [count for name, count in ops if name.startswith("aten::scatter")] == [0]


def test_indexing_puts_its_gradient_into_zeros() -> None:
    with VirtualGpu("l4") as gpu:
        table = nn.Parameter(torch.randn(50, WIDTH, device="cuda"))
        rows = torch.tensor([1, 2, 3], device="cuda")
        loss = table[rows, :].sum()
        before = gpu.memory.memory_allocated()
        loss.backward()
        assert table.grad is not None
        # The gradient of the table and nothing else is left.
        assert gpu.memory.memory_allocated() - before == table.numel() * 4


def test_double_backward_keeps_every_gradient() -> None:
    """With a graph of the gradients nothing may be overwritten."""
    with VirtualGpu("l4"):
        x = torch.randn(4, WIDTH, device="cuda", requires_grad=True)
        (grad,) = torch.autograd.grad((x + x.exp()).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), x)
        assert second.shape == x.shape


def test_what_is_freed_matches_what_was_allocated() -> None:
    with VirtualGpu("l4") as gpu:
        layer = nn.Linear(WIDTH, WIDTH, device="cuda")
        x = torch.randn(4, WIDTH, device="cuda")
        for _ in range(3):
            h = layer(x)
            h = h + layer(torch.relu(h))
            h.sum().backward()
            layer.zero_grad()
            del h
            now = gpu.memory.memory_allocated()
        workspaces = 2 * 8_519_680
        weights = 4 * (WIDTH * WIDTH + WIDTH)
        assert now - workspaces == weights + x.numel() * 4
