"""Operations without a shape rule: tried on the CPU once, listed, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu import unknown
from ebbtide.vgpu.virtual_gpu import VirtualGpu


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    """A library of one's own that is gone after the test."""
    made = torch.library.Library("ebbtide_unknown", "FRAGMENT")
    yield made
    made._destroy()


def test_shapes_strides_and_dtypes_are_the_cpu_kernels(
    gpu: VirtualGpu, library: torch.library.Library
) -> None:
    library.define("pair(Tensor x, int n) -> (Tensor, Tensor)")

    def pair(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x.repeat(n).view(-1, n).t(), torch.zeros(n, dtype=torch.int32)

    library.impl("pair", pair, "CPU")
    data = torch.randn(6, device="cuda")
    wide, counts = torch.ops.ebbtide_unknown.pair(data, 3)
    assert (tuple(wide.shape), wide.stride()) == ((3, 6), (1, 3))
    assert (tuple(counts.shape), counts.dtype) == ((3,), torch.int32)
    assert wide.is_cuda
    assert counts.is_cuda
    assert gpu.mode.storages.live_bytes == 24 + 72 + 12


def test_it_is_tried_once_and_listed_with_its_name(
    gpu: VirtualGpu, library: torch.library.Library
) -> None:
    calls: list[int] = []
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: (calls.append(1), x * 2)[1], "CPU")
    data = torch.randn(6, device="cuda")
    for _ in range(3):
        torch.ops.ebbtide_unknown.twice(data)
    assert len(calls) == 1
    assert "ebbtide_unknown::twice" in gpu.guesses["unknown-op"][0]


def test_known_values_reach_the_kernel(gpu: VirtualGpu, library: torch.library.Library) -> None:
    library.define("upto(Tensor n) -> Tensor")
    library.impl("upto", lambda n: torch.zeros(int(n)), "CPU")
    out = torch.ops.ebbtide_unknown.upto(torch.tensor(7, device="cuda"))
    assert tuple(out.shape) == (7,)


def test_in_place_gives_its_argument_back(gpu: VirtualGpu, library: torch.library.Library) -> None:
    library.define("bump_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("bump_", lambda x: x.add_(1), "CPU")
    data = torch.randn(300, device="cuda")
    assert torch.ops.ebbtide_unknown.bump_(data) is data
    assert gpu.mode.storages.live_bytes == 1200


def test_without_a_kernel_it_is_refused(gpu: VirtualGpu, library: torch.library.Library) -> None:
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(
        VirtualGpuError, match=r"ebbtide_unknown::nothing cannot run.*no CPU kernel"
    ):
        torch.ops.ebbtide_unknown.nothing(torch.randn(3, device="cuda"))
    assert gpu.guesses == {}


def test_too_large_to_try_is_refused(
    gpu: VirtualGpu, library: torch.library.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown, "_MOST_BYTES", 100)
    library.define("large(Tensor x) -> Tensor")
    library.impl("large", lambda x: x * 2, "CPU")
    with pytest.raises(VirtualGpuError, match=r"large.*\(400 bytes\) are too large"):
        torch.ops.ebbtide_unknown.large(torch.randn(100, device="cuda"))


def test_a_registered_shape_rule_is_taken(gpu: VirtualGpu, library: torch.library.Library) -> None:
    library.define("ruled(Tensor x) -> Tensor")
    torch.library.register_fake("ebbtide_unknown::ruled", lambda x: x.new_empty(9), lib=library)
    assert tuple(torch.ops.ebbtide_unknown.ruled(torch.randn(3, device="cuda")).shape) == (9,)
    assert gpu.guesses == {}


def test_sparse_tensors(gpu: VirtualGpu) -> None:
    dense = torch.randn(4, 4)
    sparse = dense.to_sparse().cuda()
    assert sparse.layout is torch.sparse_coo
    out = torch.sparse.mm(sparse, torch.randn(4, 3, device="cuda"))
    assert (tuple(out.shape), out.is_cuda) == ((4, 3), True)


def test_a_sparse_detached_tensor_shares_its_memory(gpu: VirtualGpu) -> None:
    places = torch.tensor([[0, 1], [1, 2]], device="cuda")
    values = torch.randn(2, device="cuda", requires_grad=True)
    sparse = torch.sparse_coo_tensor(places, values, (3, 3), check_invariants=False)
    before = gpu.mode.storages.live_bytes
    other = sparse.detach()
    assert other.layout is torch.sparse_coo
    assert gpu.mode.storages.live_bytes == before


def test_sparse_adam_steps(gpu: VirtualGpu) -> None:
    layer = torch.nn.Embedding(1000, 8, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(layer.parameters())
    for _ in range(2):
        layer(torch.randint(0, 1000, (6,), device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # Both moments are as large as the table.
    assert gpu.mode.storages.live_bytes >= 3 * 4 * 8000
    assert "unknown-op" in gpu.guesses


def test_sparse_gradients_are_held(gpu: VirtualGpu) -> None:
    table = torch.nn.Embedding(1000, 16, sparse=True).cuda()
    numbers = torch.randint(0, 1000, (4096,), device="cuda")
    before = gpu.memory.memory_allocated()
    one = 4096 * (16 * 4 + 8)
    table(numbers).sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert gpu.memory.memory_allocated() - before == one
    total = gradient + gradient
    assert total._values().shape == (8192, 16)
    assert gpu.memory.memory_allocated() - before == 3 * one
    del total
    gradient = table.weight.grad = None
    assert gpu.memory.memory_allocated() == before
