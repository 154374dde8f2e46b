"""LSTM, GRU and RNN through cuDNN's operation: memory by arithmetic, every way to call them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ebbtide.vgpu.kernels.recurrent import DROPOUT_STATE
from ebbtide.vgpu.virtual_gpu import VirtualGpu

STEPS, BATCH, INPUTS, HIDDEN, LAYERS = 5, 3, 8, 16, 2
Names = Callable[[], list[str]]
Sizes = Callable[[], list[int]]


def _elements(gates: int) -> int:
    """Weights and biases of two layers, one direction."""
    first = gates * HIDDEN * (INPUTS + HIDDEN)
    second = gates * HIDDEN * 2 * HIDDEN
    return first + second + LAYERS * 2 * gates * HIDDEN


def test_weights_become_views_of_one_buffer(gpu: VirtualGpu, allocated: Sizes) -> None:
    module = nn.LSTM(INPUTS, HIDDEN, LAYERS)
    own = list(module.parameters())
    module.cuda()
    assert [id(p) for p in module.parameters()] == [id(p) for p in own]
    sizes = allocated()
    # The eight parameters one by one, then the buffer; the eight are given back.
    assert sizes == [4 * p.numel() for p in own] + [4 * _elements(4)]
    assert gpu.memory.memory_allocated() == -(-4 * _elements(4) // 512) * 512
    assert len({p.untyped_storage()._cdata for p in own}) == 1
    assert len({p.data_ptr() for p in own}) == 8


def test_a_step_of_lstm_allocates_this(gpu: VirtualGpu, allocated: Sizes) -> None:
    module = nn.LSTM(INPUTS, HIDDEN, LAYERS).cuda()
    data = torch.randn(STEPS, BATCH, INPUTS, device="cuda")
    allocated()
    out, _ = module(data)
    state = 4 * LAYERS * BATCH * HIDDEN
    cells = BATCH * LAYERS * HIDDEN
    matrices = _elements(4) - LAYERS * 2 * 4 * HIDDEN
    kept = STEPS * BATCH * HIDDEN
    assert allocated() == [
        state,  # h_0 and c_0
        state,
        4 * STEPS * BATCH * HIDDEN,  # output, h_n, c_n
        state,
        state,
        4 * (cells * 11 + matrices),  # workspace
        4 * (kept * 5 * LAYERS + kept * (LAYERS - 1)),  # reserve
    ]
    out.sum().backward()
    sizes = allocated()
    assert sizes[0] == 4  # sum
    assert 4 * STEPS * BATCH * INPUTS in sizes  # the gradient of the input, wanted or not
    assert sizes.count(4 * (cells * 11 + matrices)) == 2  # workspaces: of data and of weights
    assert sizes[-2:] == [4 * _elements(4), 4 * (cells * 11 + matrices)]
    gradients = [p.grad for p in module.parameters()]
    assert len({g.untyped_storage()._cdata for g in gradients}) == 1


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_evaluation_keeps_no_reserve(gpu: VirtualGpu, kind: type[nn.RNNBase], gates: int) -> None:
    module = kind(INPUTS, HIDDEN, LAYERS).cuda().eval()
    before = gpu.mode.storages.live_bytes
    assert before == 4 * _elements(gates)
    with torch.no_grad():
        out, _ = module(torch.randn(STEPS, BATCH, INPUTS, device="cuda"))
    del _
    assert gpu.mode.storages.live_bytes - before == 4 * STEPS * BATCH * HIDDEN
    assert out.shape == (STEPS, BATCH, HIDDEN)


def test_the_dropout_state_is_made_once(gpu: VirtualGpu, allocated: Sizes) -> None:
    module = nn.LSTM(INPUTS, HIDDEN, LAYERS, dropout=0.5).cuda()
    data = torch.randn(STEPS, BATCH, INPUTS, device="cuda")
    allocated()
    module(data)
    assert allocated().count(DROPOUT_STATE[1]) == 1
    module(data)
    assert DROPOUT_STATE[1] not in allocated()


def test_autocast_makes_a_half_buffer(gpu: VirtualGpu, allocated: Sizes) -> None:
    module = nn.GRU(INPUTS, HIDDEN, LAYERS).cuda()
    data = torch.randn(STEPS, BATCH, INPUTS, device="cuda")
    allocated()
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=dtype):
            out, state = module(data)
        # cuDNN runs in half whatever autocast's dtype is (AutocastRNN.cpp).
        assert out.dtype is state.dtype is torch.float16
        assert allocated().count(2 * _elements(3)) == 1
    out.float().sum().backward()
    assert {p.grad.dtype for p in module.parameters()} == {torch.float32}


def test_scattered_weights_are_gathered_at_every_call(gpu: VirtualGpu, allocated: Sizes) -> None:
    module = nn.LSTM(INPUTS, HIDDEN, LAYERS).cuda()
    with torch.no_grad():
        module.weight_hh_l0.data = module.weight_hh_l0.detach().clone()
    data = torch.randn(STEPS, BATCH, INPUTS, device="cuda")
    allocated()
    with pytest.warns(UserWarning, match="single contiguous chunk"):
        out, _ = module(data)
    assert allocated().count(4 * _elements(4)) == 1
    out.sum().backward()
    module.flatten_parameters()
    allocated()
    module(data)
    assert 4 * _elements(4) not in allocated()


CASES: list[tuple[type[nn.RNNBase], dict[str, Any]]] = [
    (kind, options)
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for options in (
        {},
        {"bidirectional": True},
        {"batch_first": True},
        {"dropout": 0.5},
        {"bias": False},
        {"nonlinearity": "relu"} if kind is nn.RNN else {"num_layers": 1},
        {"proj_size": 4} if kind is nn.LSTM else {"num_layers": 3},
        {"proj_size": 4, "bias": False} if kind is nn.LSTM else {},
    )
]


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("amp", [False, True])
def test_shapes_and_gradients(
    gpu: VirtualGpu, kind: type[nn.RNNBase], options: dict[str, Any], packed: bool, amp: bool
) -> None:
    options = {"num_layers": LAYERS, **options}
    module = kind(INPUTS, HIDDEN, **options).cuda()
    first = options.get("batch_first", False)
    shape = (BATCH, STEPS, INPUTS) if first else (STEPS, BATCH, INPUTS)
    data = torch.randn(shape, device="cuda", requires_grad=True)
    given: Any = data
    if packed:
        given = pack_padded_sequence(data, torch.tensor([5, 4, 2]), batch_first=first)
    with torch.autocast("cuda") if amp else contextlib.nullcontext():
        out, state = module(given)
    if packed:
        assert out.data.shape[0] == 11
        out, lengths = pad_packed_sequence(out, batch_first=first)
        assert lengths.tolist() == [5, 4, 2]
    width = (options.get("proj_size") or HIDDEN) * (1 + options.get("bidirectional", False))
    assert out.shape == (*shape[:2], width)
    assert out.dtype is (torch.float16 if amp else torch.float32)
    hidden = state[0] if kind is nn.LSTM else state
    assert hidden.shape[:2] == (
        options["num_layers"] * (1 + options.get("bidirectional", False)),
        3,
    )
    out.float().sum().backward()
    assert data.grad is not None
    assert data.grad.shape == data.shape
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert (parameter.grad.shape, parameter.grad.dtype) == (parameter.shape, torch.float32)


def test_inference_mode(gpu: VirtualGpu, op_names: Names) -> None:
    module = nn.LSTM(INPUTS, HIDDEN, LAYERS).cuda().eval()
    op_names()
    with torch.inference_mode():
        out, _ = module(torch.randn(STEPS, BATCH, INPUTS, device="cuda"))
    assert "_cudnn_rnn" in op_names()
    assert out.shape == (STEPS, BATCH, HIDDEN)


def test_without_cudnn_the_cells_run_one_by_one(gpu: VirtualGpu, op_names: Names) -> None:
    with torch.backends.cudnn.flags(enabled=False):
        module = nn.LSTM(INPUTS, HIDDEN, LAYERS).cuda()
        op_names()
        out, _ = module(torch.randn(STEPS, BATCH, INPUTS, device="cuda"))
    names = op_names()
    assert "_cudnn_rnn" not in names
    assert names.count("_thnn_fused_lstm_cell") == STEPS * LAYERS
    out.sum().backward()


def test_backward_in_evaluation_is_refused_as_by_cudnn(gpu: VirtualGpu) -> None:
    module = nn.LSTM(INPUTS, HIDDEN).cuda().eval()
    out, _ = module(torch.randn(STEPS, BATCH, INPUTS, device="cuda", requires_grad=True))
    with pytest.raises(RuntimeError, match="only be called in training mode"):
        out.sum().backward()
    assert (torch.ones(2, device="cuda") + 1).is_cuda


def test_lengths_are_checked_as_by_pytorch(gpu: VirtualGpu) -> None:
    data = torch.randn(STEPS, BATCH, INPUTS, device="cuda")
    with pytest.raises(RuntimeError, match="greater than 0"):
        pack_padded_sequence(data, torch.tensor([5, 4, 0]))
    with pytest.raises(RuntimeError, match="decreasing order"):
        pack_padded_sequence(data, torch.tensor([2, 4, 5]))
    packed = pack_padded_sequence(data, torch.tensor([2, 4, 5]), enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 3, 2, 2, 1]


def test_nothing_is_kept(gpu: VirtualGpu) -> None:
    module = nn.LSTM(INPUTS, HIDDEN, LAYERS).cuda()
    out, state = module(torch.randn(STEPS, BATCH, INPUTS, device="cuda"))
    out.sum().backward()
    del module, out, state
    assert gpu.mode.storages.live_rows() == []
