"""Storages: one row each, freed at the moment at which CUDA would free them."""

from __future__ import annotations

import gc

import pytest
import torch

from ebbtide.vgpu.storages import Storages
from ebbtide.vgpu.tape import ALLOC, FREE, UNKNOWN, WORKSPACE, Tape
from ebbtide.vgpu.virtual_gpu import VirtualGpu


@pytest.fixture
def storages() -> Storages:
    return Storages(Tape())


def _moves(storages: Storages) -> list[tuple[int, int]]:
    tape = storages.tape
    return [(k, a) for k, a in zip(tape.kind, tape.arg, strict=True) if k in (ALLOC, FREE)]


def test_a_storage_is_noted_once(storages: Storages) -> None:
    data = torch.empty(10)
    storages.add(data)
    storages.add(data.view(2, 5))
    storages.add(data[3:])
    assert _moves(storages) == [(ALLOC, 0)]
    assert storages.live_bytes == storages.peak_bytes == 40
    assert storages.row_of(data[1:2]) == 0


def test_it_dies_with_the_last_view(storages: Storages) -> None:
    data = torch.empty(10)
    view = data[2:4]
    storages.add(data)
    del data
    assert storages.live_bytes == 40
    del view
    assert _moves(storages) == [(ALLOC, 0), (FREE, 0)]
    assert storages.live_bytes == 0
    assert storages.live_rows() == []
    assert storages.peak_bytes == 40


def test_it_lives_while_only_autograd_holds_it(storages: Storages) -> None:
    weight = torch.ones(10, requires_grad=True)
    saved = torch.full((10,), 2.0)
    storages.add(saved)
    out = weight * saved
    del saved
    assert storages.live_rows() == [0]
    out.sum().backward()
    del out
    assert storages.live_rows() == []


def test_an_empty_one_takes_nothing(storages: Storages) -> None:
    storages.add(torch.empty(0, 5))
    assert _moves(storages) == []


def test_a_resized_one_is_another_allocation(storages: Storages) -> None:
    data = torch.empty(4)
    storages.add(data)
    data.resize_(100)
    storages.add(data)
    assert _moves(storages) == [(ALLOC, 0), (FREE, 0), (ALLOC, 1)]
    assert storages.tape.alloc_bytes == [16, 400]
    del data
    assert storages.live_bytes == 0


def test_a_span_and_a_category_are_kept(storages: Storages) -> None:
    data = torch.empty(4)
    storages.add_new(data, 16, (8, 32), WORKSPACE)
    tape = storages.tape
    assert (tape.alloc_low, tape.alloc_bytes, tape.alloc_high) == ([8], [16], [32])
    assert tape.alloc_category == [WORKSPACE]
    other = torch.empty(4)
    storages.add_new(other, 16)
    assert tape.alloc_low[1] == tape.alloc_high[1] == 16
    assert tape.alloc_category[1] == UNKNOWN


def test_a_sparse_tensor_is_its_parts(storages: Storages) -> None:
    indices, values = torch.tensor([[0, 1], [1, 2]]), torch.ones(2)
    sparse = torch.sparse_coo_tensor(indices, values, (3, 3), check_invariants=True)
    storages.add(sparse)
    # Two coordinates of 8 bytes and a value of 4 for each of two elements.
    assert storages.tape.alloc_bytes == [32, 8]
    del sparse, indices, values
    assert storages.live_rows() == []


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_a_compressed_one_too(storages: Storages, layout: torch.layout) -> None:
    starts, places = torch.tensor([0, 1, 2]), torch.tensor([1, 2])
    storages.add(
        torch.sparse_compressed_tensor(
            starts,
            places,
            torch.ones(2),
            (2, 3) if layout is torch.sparse_csr else (3, 2),
            layout=layout,
            check_invariants=True,
        )
    )
    assert storages.tape.alloc_bytes == [24, 16, 8]


def test_somebody_is_told_after_each_allocation() -> None:
    calls: list[int] = []
    storages = Storages(Tape(), lambda: calls.append(1))
    data = [torch.empty(1) for _ in range(3)]
    for item in data:
        storages.add(item)
    assert calls == [1, 1, 1]


# -- no leaks on the virtual GPU


def test_a_cycle_in_python_does_not_keep_storages(gpu: VirtualGpu) -> None:
    class Node:
        pass

    node = Node()
    node.self = node
    node.data = torch.empty(100, device="cuda")
    assert gpu.mode.storages.live_bytes == 400
    del node
    gc.collect()
    assert gpu.mode.storages.live_bytes == 0


def test_a_training_step_leaves_nothing(gpu: VirtualGpu) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    parameters = sum(p.numel() for p in model.parameters())
    # Parameters, two moments, and the steps on the host.
    assert gpu.mode.storages.live_bytes == 3 * 4 * parameters
    del model, optimizer
    gc.collect()
    assert gpu.mode.storages.live_rows() == []


def test_an_error_leaves_nothing(gpu: VirtualGpu) -> None:
    def fails() -> None:
        data = torch.empty(1000, device="cuda")
        raise ValueError(data.shape)

    with pytest.raises(ValueError, match="1000"):
        fails()
    gc.collect()
    assert gpu.mode.storages.live_bytes == 0
