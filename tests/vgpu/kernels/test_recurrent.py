"""cuDNN's recurrent layers: against printed sizes, and by arithmetic."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.kernels.recurrent import DROPOUT_STATE, GRU, LSTM, RELU, TANH, Recurrent

MODULES = {LSTM: torch.nn.LSTM, GRU: torch.nn.GRU, TANH: torch.nn.RNN}


def published(mode: int) -> Recurrent:
    """The network of pytorch/pytorch#2895: 25,000 steps, seen as a batch of 100."""
    return Recurrent(
        mode=mode,
        inputs=123,
        hidden=320,
        projection=0,
        layers=4,
        directions=1,
        steps=250,
        batch=100,
    )


@pytest.mark.parametrize(
    ("mode", "reserve", "workspace"),
    [(LSTM, 736_000_000, 17_730_560), (GRU, 864_000_000, 13_169_920)],
)
def test_what_cudnn_printed(mode: int, reserve: int, workspace: int) -> None:
    net = published(mode)
    assert net.reserve_bytes(4, dropout=False)[1] == reserve
    assert net.workspace_bytes(4)[1] == workspace


@pytest.mark.parametrize(("mode", "parameters"), [(LSTM, 3038090), (GRU, 2279370), (TANH, 761930)])
def test_the_published_parameter_counts(mode: int, parameters: int) -> None:
    # With a linear layer of 320 to 10 behind it.
    assert published(mode).weight_elements() + 3210 == parameters


@pytest.mark.parametrize("mode", MODULES)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_shapes_are_those_of_the_modules(mode: int, both: bool, biases: bool) -> None:
    module = MODULES[mode](5, 7, 3, bias=biases, bidirectional=both)
    net = Recurrent(mode=mode, inputs=5, hidden=7, projection=0, layers=3, directions=1 + both)
    assert net.shapes(biases=biases) == [tuple(p.shape) for p in module.parameters()]


def test_shapes_with_a_projection() -> None:
    module = torch.nn.LSTM(5, 7, 2, proj_size=3, bidirectional=True)
    net = Recurrent(mode=LSTM, inputs=5, hidden=7, projection=3, layers=2, directions=2)
    assert net.shapes(biases=True) == [tuple(p.shape) for p in module.parameters()]
    assert net.weight_elements() == sum(p.numel() for p in module.parameters())


def test_a_layer_without_biases_keeps_room_for_them() -> None:
    net = Recurrent(mode=GRU, inputs=5, hidden=7, projection=0, layers=1, directions=1)
    assert net.weight_elements() == 21 * 5 + 21 * 7 + 2 * 21
    assert net.offsets(biases=False) == [0, 105]
    assert net.offsets(biases=True) == [0, 105, 252, 273]


nets = st.builds(
    Recurrent,
    mode=st.sampled_from([RELU, TANH, LSTM, GRU]),
    inputs=st.integers(1, 9),
    hidden=st.integers(4, 9),
    projection=st.just(0),
    layers=st.integers(1, 4),
    directions=st.integers(1, 2),
    steps=st.integers(1, 9),
    batch=st.integers(1, 9),
)


@given(nets)
def test_parameters_fill_the_buffer_without_overlap(net: Recurrent) -> None:
    parts = sorted(zip(net.offsets(biases=True), map(prod, net.shapes(biases=True)), strict=True))
    end = 0
    for offset, size in parts:
        assert offset == end
        end = offset + size
    assert end == net.weight_elements()


@given(nets, st.sampled_from([2, 4, 8]), st.booleans())
def test_spans_are_ordered(net: Recurrent, itemsize: int, dropout: bool) -> None:
    for low, likely, high in (
        net.reserve_bytes(itemsize, dropout=dropout),
        net.workspace_bytes(itemsize),
    ):
        assert 0 < low <= likely <= high


@given(nets)
def test_the_reserve_grows_with_every_step(net: Recurrent) -> None:
    longer = Recurrent(
        mode=net.mode, inputs=net.inputs, hidden=net.hidden, projection=0, layers=net.layers,
        directions=net.directions, steps=2 * net.steps, batch=net.batch,
    )  # fmt: skip
    one, two = net.reserve_bytes(4, dropout=False), longer.reserve_bytes(4, dropout=False)
    assert tuple(2 * size for size in one) == two


def test_dropout_states_are_slightly_over_two_megabytes() -> None:
    low, likely, high = DROPOUT_STATE
    assert 2 << 20 == low < likely < high
