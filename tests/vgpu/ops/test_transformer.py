"""The fast path in evaluation does what its CUDA kernels do, and no less."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ebbtide.vgpu.virtual_gpu import VirtualGpu

Names = Callable[[], list[str]]
BATCH, STEPS, WIDTH, HEADS = 2, 8, 16, 4


def _data() -> torch.Tensor:
    return torch.randn(BATCH, STEPS, WIDTH, device="cuda")


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_is_taken_apart(
    gpu: VirtualGpu, op_names: Names, norm_first: bool, activation: str
) -> None:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 32, batch_first=True, norm_first=norm_first, activation=activation
    )
    layer, data = layer.cuda().eval(), _data()
    op_names()
    with torch.no_grad():
        out = layer(data)
    assert out.shape == data.shape
    names = op_names()
    assert names.count("native_layer_norm") == 2
    assert names.count("addmm") == 3
    assert "_addmm_activation" in names
    assert "_scaled_dot_product_efficient_attention" in names
    assert (names[0] == "native_layer_norm") is norm_first


def test_both_paths_peak_alike(gpu: VirtualGpu) -> None:
    layer, peaks = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).cuda().eval(), []
    data = torch.randn(8, 128, 64, device="cuda")
    with torch.no_grad():
        layer(data)  # workspaces
        for fast in (True, False):
            torch.backends.mha.set_fastpath_enabled(fast)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            layer(data)
            peaks.append(torch.cuda.max_memory_allocated() - before)
    torch.backends.mha.set_fastpath_enabled(True)
    hidden = 4 * 8 * 128 * 256
    assert all(peak > hidden for peak in peaks)
    assert 0.6 < peaks[0] / peaks[1] < 1.6


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_alone(gpu: VirtualGpu, op_names: Names, need_weights: bool) -> None:
    attention, data = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).cuda().eval(), _data()
    op_names()
    with torch.no_grad():
        out, weights = attention(data, data, data, need_weights=need_weights)
    assert out.shape == data.shape
    fused = "_scaled_dot_product_efficient_attention" in op_names()
    assert fused is not need_weights
    if need_weights:
        assert weights.shape == (BATCH, STEPS, STEPS)
    else:
        assert weights is None


def test_a_padded_encoder_keeps_its_padding(gpu: VirtualGpu) -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 2
    )
    encoder, data = encoder.cuda().eval(), _data()
    padding = torch.zeros(BATCH, STEPS, dtype=torch.bool, device="cuda")
    with torch.no_grad():
        assert encoder(data, src_key_padding_mask=padding).shape == data.shape
    assert set(gpu.guesses) == {"nested"}


def test_nothing_is_kept(gpu: VirtualGpu) -> None:
    layer, data = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), _data()
    layer.cuda().eval()
    before = gpu.mode.storages.live_bytes
    with torch.inference_mode():
        out = layer(data)
    assert gpu.mode.storages.live_bytes - before == out.untyped_storage().nbytes()
