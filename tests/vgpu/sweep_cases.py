"""What the sweep runs: modules with inputs, and functions with inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Make = Callable[[], Any]


def x(*shape: int) -> Callable[[], torch.Tensor]:
    """A random input of this shape."""
    return lambda: torch.randn(*shape)


def ids(high: int, *shape: int) -> Callable[[], torch.Tensor]:
    """Random integers below `high`."""
    return lambda: torch.randint(0, high, shape)


def probabilities(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(*shape)


def signs(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, 2, shape).float() * 2 - 1


def value(thing: Any) -> Callable[[], Any]:
    return lambda: thing


@dataclass(frozen=True, kw_only=True)
class Case:
    """One module or function, its inputs, and where it cannot run.

    Attributes:
        make: gives a callable: a module, or a function of the inputs.
        inputs: makers of the positional arguments.
        skip: variants that PyTorch itself does not support there.
    """

    make: Make
    inputs: tuple[Callable[[], Any], ...] = ()
    skip: frozenset[str] = field(default_factory=frozenset)


def _m(make: Make, *inputs: Callable[[], Any], skip: str = "") -> Case:
    return Case(make=make, inputs=inputs, skip=frozenset(skip.split()))


def _f(function: Callable[..., Any], *inputs: Callable[[], Any], skip: str = "") -> Case:
    return Case(make=lambda: function, inputs=inputs, skip=frozenset(skip.split()))


_IMAGE = x(2, 8, 12, 12)
_LINE = x(2, 8, 16)
_VOLUME = x(2, 4, 6, 6, 6)

CONVOLUTIONS = {
    "Conv1d": _m(lambda: nn.Conv1d(8, 6, 3), _LINE),
    "Conv1d-dilated": _m(lambda: nn.Conv1d(8, 6, 3, dilation=2, padding=2), _LINE),
    "Conv2d": _m(lambda: nn.Conv2d(8, 6, 3), _IMAGE),
    "Conv2d-1x1": _m(lambda: nn.Conv2d(8, 6, 1, bias=False), _IMAGE),
    "Conv2d-strided": _m(lambda: nn.Conv2d(8, 6, 3, stride=2, padding=1), _IMAGE),
    "Conv2d-grouped": _m(lambda: nn.Conv2d(8, 12, 3, groups=4), _IMAGE),
    "Conv2d-depthwise": _m(lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1), _IMAGE),
    "Conv2d-depthwise-multiplier": _m(lambda: nn.Conv2d(8, 16, 3, groups=8), _IMAGE),
    "Conv2d-dilated": _m(lambda: nn.Conv2d(8, 6, 3, dilation=2), _IMAGE),
    "Conv2d-same": _m(lambda: nn.Conv2d(8, 6, 4, padding="same"), _IMAGE),
    "Conv2d-reflect": _m(lambda: nn.Conv2d(8, 6, 3, padding=1, padding_mode="reflect"), _IMAGE),
    "Conv2d-unbatched": _m(lambda: nn.Conv2d(8, 6, 3), x(8, 12, 12)),
    "Conv3d": _m(lambda: nn.Conv3d(4, 6, 3), _VOLUME),
    "Conv3d-depthwise": _m(lambda: nn.Conv3d(4, 4, 3, groups=4), _VOLUME),
    "ConvTranspose1d": _m(lambda: nn.ConvTranspose1d(8, 6, 3, stride=2), _LINE),
    "ConvTranspose2d": _m(lambda: nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1), _IMAGE),
    "ConvTranspose2d-grouped": _m(lambda: nn.ConvTranspose2d(8, 8, 2, groups=2), _IMAGE),
    "ConvTranspose2d-output-padding": _m(
        lambda: nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1, dilation=2), _IMAGE
    ),
    "ConvTranspose3d": _m(lambda: nn.ConvTranspose3d(4, 6, 3), _VOLUME),
    "LazyConv2d": _m(lambda: nn.LazyConv2d(6, 3), _IMAGE),
}

NORMS = {
    "BatchNorm1d": _m(lambda: nn.BatchNorm1d(8), _LINE),
    "BatchNorm1d-flat": _m(lambda: nn.BatchNorm1d(8), x(4, 8)),
    "BatchNorm2d": _m(lambda: nn.BatchNorm2d(8), _IMAGE),
    "BatchNorm2d-plain": _m(
        lambda: nn.BatchNorm2d(8, affine=False, track_running_stats=False), _IMAGE
    ),
    "BatchNorm3d": _m(lambda: nn.BatchNorm3d(4), _VOLUME),
    "InstanceNorm2d": _m(lambda: nn.InstanceNorm2d(8, affine=True), _IMAGE),
    "InstanceNorm3d": _m(lambda: nn.InstanceNorm3d(4), _VOLUME),
    "GroupNorm": _m(lambda: nn.GroupNorm(4, 8), _IMAGE),
    "LayerNorm": _m(lambda: nn.LayerNorm(16), _LINE),
    "LayerNorm-plain": _m(lambda: nn.LayerNorm((8, 16), elementwise_affine=False), _LINE),
    "RMSNorm": _m(lambda: nn.RMSNorm(16), _LINE),
    "LocalResponseNorm": _m(lambda: nn.LocalResponseNorm(2), _IMAGE),
    "CrossMapLRN2d": _m(lambda: nn.CrossMapLRN2d(2), _IMAGE, skip="fp16 bf16"),
}

POOLING = {
    "MaxPool1d": _m(lambda: nn.MaxPool1d(2), _LINE),
    "MaxPool2d": _m(lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), _IMAGE),
    "MaxPool2d-indices": _m(lambda: nn.MaxPool2d(2, return_indices=True), _IMAGE),
    "MaxPool3d": _m(lambda: nn.MaxPool3d(2), _VOLUME),
    "MaxUnpool2d": _m(
        lambda: lambda t: F.max_unpool2d(*F.max_pool2d(t, 2, return_indices=True), 2), _IMAGE
    ),
    "AvgPool1d": _m(lambda: nn.AvgPool1d(2), _LINE),
    "AvgPool2d": _m(lambda: nn.AvgPool2d(3, 2), _IMAGE),
    "AvgPool3d": _m(lambda: nn.AvgPool3d(2), _VOLUME),
    "LPPool2d": _m(lambda: nn.LPPool2d(2, 2), _IMAGE),
    "FractionalMaxPool2d": _m(lambda: nn.FractionalMaxPool2d(2, output_size=5), _IMAGE),
    "FractionalMaxPool3d": _m(lambda: nn.FractionalMaxPool3d(2, output_size=3), _VOLUME),
    "AdaptiveAvgPool1d": _m(lambda: nn.AdaptiveAvgPool1d(3), _LINE),
    "AdaptiveAvgPool2d": _m(lambda: nn.AdaptiveAvgPool2d(3), _IMAGE),
    "AdaptiveAvgPool2d-one": _m(lambda: nn.AdaptiveAvgPool2d(1), _IMAGE),
    "AdaptiveAvgPool3d": _m(lambda: nn.AdaptiveAvgPool3d(2), _VOLUME),
    "AdaptiveMaxPool1d": _m(lambda: nn.AdaptiveMaxPool1d(3), _LINE),
    "AdaptiveMaxPool2d": _m(lambda: nn.AdaptiveMaxPool2d(3), _IMAGE),
    "AdaptiveMaxPool3d": _m(lambda: nn.AdaptiveMaxPool3d(2), _VOLUME),
}

ACTIVATIONS = {
    name: _m(make, _LINE)
    for name, make in {
        **{
            kind.__name__: kind
            for kind in (
                nn.ELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardtanh, nn.Hardswish, nn.LeakyReLU,
                nn.LogSigmoid, nn.PReLU, nn.ReLU, nn.ReLU6, nn.RReLU, nn.SELU, nn.CELU, nn.GELU,
                nn.Sigmoid, nn.SiLU, nn.Mish, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh,
                nn.Tanhshrink, nn.GLU, nn.Dropout, nn.Dropout1d, nn.AlphaDropout,
                nn.FeatureAlphaDropout, nn.Identity, nn.Flatten,
            )
        },
        "GELU-tanh": lambda: nn.GELU(approximate="tanh"),
        "Threshold": lambda: nn.Threshold(0.1, 20),
        "Softmin": lambda: nn.Softmin(-1),
        "Softmax": lambda: nn.Softmax(-1),
        "LogSoftmax": lambda: nn.LogSoftmax(-1),
        "ReLU-inplace": lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True)),
        "Softmax2d": lambda: nn.Sequential(nn.Unflatten(2, (4, 4)), nn.Softmax2d()),
        "Dropout2d": lambda: nn.Sequential(nn.Unflatten(2, (4, 4)), nn.Dropout2d()),
        "Dropout3d": lambda: nn.Sequential(nn.Unflatten(2, (2, 2, 4)), nn.Dropout3d()),
        "AdaptiveLogSoftmax-log-prob": lambda: nn.Sequential(
            nn.Flatten(0, 1), nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10]).head
        ),
    }.items()
}  # fmt: skip

SHAPES = {
    "ConstantPad2d": _m(lambda: nn.ConstantPad2d(1, 0.5), _IMAGE),
    "ZeroPad2d": _m(lambda: nn.ZeroPad2d((1, 0, 2, 1)), _IMAGE),
    "CircularPad2d": _m(lambda: nn.CircularPad2d(2), _IMAGE),
    "ReflectionPad1d": _m(lambda: nn.ReflectionPad1d(2), _LINE),
    "ReflectionPad2d": _m(lambda: nn.ReflectionPad2d(2), _IMAGE),
    "ReflectionPad3d": _m(lambda: nn.ReflectionPad3d(1), _VOLUME),
    "ReplicationPad1d": _m(lambda: nn.ReplicationPad1d(2), _LINE),
    "ReplicationPad2d": _m(lambda: nn.ReplicationPad2d(2), _IMAGE),
    "ReplicationPad3d": _m(lambda: nn.ReplicationPad3d(1), _VOLUME),
    "PixelShuffle": _m(lambda: nn.PixelShuffle(2), _IMAGE),
    "PixelUnshuffle": _m(lambda: nn.PixelUnshuffle(2), _IMAGE),
    "ChannelShuffle": _m(lambda: nn.ChannelShuffle(2), _IMAGE),
    "Fold": _m(lambda: nn.Fold((6, 6), 3), x(2, 18, 16)),
    "Unfold": _m(lambda: nn.Unfold(3, padding=1, stride=2), _IMAGE),
    "Upsample-nearest": _m(lambda: nn.Upsample(scale_factor=2), _IMAGE),
    "Upsample-bilinear": _m(
        lambda: nn.Upsample(size=(20, 20), mode="bilinear", align_corners=True), _IMAGE
    ),
    "Upsample-bicubic": _m(lambda: nn.Upsample(scale_factor=2, mode="bicubic"), _IMAGE),
    "Upsample-trilinear": _m(lambda: nn.Upsample(scale_factor=2, mode="trilinear"), _VOLUME),
    "Upsample-linear": _m(lambda: nn.Upsample(scale_factor=2, mode="linear"), _LINE),
    "interpolate-antialias": _f(
        lambda t: F.interpolate(t, (5, 5), mode="bilinear", antialias=True), _IMAGE
    ),
    "interpolate-area": _f(lambda t: F.interpolate(t, (5, 5), mode="area"), _IMAGE),
    "grid_sample": _f(
        lambda t, grid: F.grid_sample(t, grid, align_corners=False), _IMAGE, x(2, 5, 5, 2)
    ),
    "grid_sample-3d": _f(
        lambda t, grid: F.grid_sample(t, grid, align_corners=False), _VOLUME, x(2, 3, 3, 3, 3)
    ),
    "affine_grid": _f(lambda t: F.affine_grid(t, [2, 3, 5, 5], align_corners=False), x(2, 2, 3)),
}

SEQUENCES = {
    "Linear": _m(lambda: nn.Linear(16, 8), _LINE),
    "Linear-no-bias": _m(lambda: nn.Linear(16, 8, bias=False), _LINE),
    "LazyLinear": _m(lambda: nn.LazyLinear(8), _LINE),
    "Bilinear": _m(lambda: nn.Bilinear(16, 8, 4), x(3, 16), x(3, 8)),
    "Embedding": _m(lambda: nn.Embedding(10, 8), ids(10, 3, 5)),
    "Embedding-padding": _m(lambda: nn.Embedding(10, 8, padding_idx=0), ids(10, 3, 5)),
    "Embedding-max-norm": _m(lambda: nn.Embedding(10, 8, max_norm=1.0), ids(10, 3, 5)),
    "Embedding-sparse": _m(lambda: nn.Embedding(10, 8, sparse=True), ids(10, 3, 5)),
    "EmbeddingBag-mean": _m(lambda: nn.EmbeddingBag(10, 8), ids(10, 3, 5)),
    "EmbeddingBag-sum": _m(
        lambda: nn.EmbeddingBag(10, 8, mode="sum"), ids(10, 9), value(torch.tensor([0, 4, 6]))
    ),
    "EmbeddingBag-max": _m(lambda: nn.EmbeddingBag(10, 8, mode="max"), ids(10, 3, 5)),
    "EmbeddingBag-sparse": _m(
        lambda: nn.EmbeddingBag(10, 8, mode="sum", sparse=True), ids(10, 3, 5)
    ),
    "LSTM": _m(lambda: nn.LSTM(16, 8, 2, batch_first=True), _LINE),
    "GRU": _m(lambda: nn.GRU(16, 8, bidirectional=True), _LINE),
    "RNN": _m(lambda: nn.RNN(16, 8, nonlinearity="relu"), _LINE),
    "LSTM-projection": _m(lambda: nn.LSTM(16, 8, proj_size=4), _LINE),
    "LSTM-dropout": _m(lambda: nn.LSTM(16, 8, 2, dropout=0.1), _LINE),
    "LSTMCell": _m(lambda: nn.LSTMCell(16, 8), x(3, 16)),
    "GRUCell": _m(lambda: nn.GRUCell(16, 8), x(3, 16)),
    "RNNCell": _m(lambda: nn.RNNCell(16, 8), x(3, 16)),
    "MultiheadAttention": _m(
        lambda: nn.MultiheadAttention(16, 4, batch_first=True), _LINE, _LINE, _LINE
    ),
    "MultiheadAttention-no-weights": _m(
        lambda: _Attend(nn.MultiheadAttention(16, 4, batch_first=True, dropout=0.1)), _LINE
    ),
    "MultiheadAttention-sequence-first": _m(
        lambda: nn.MultiheadAttention(16, 2, add_bias_kv=True), _LINE, _LINE, _LINE
    ),
    "TransformerEncoderLayer": _m(
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), _LINE
    ),
    "TransformerEncoderLayer-norm-first": _m(
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True), _LINE
    ),
    "TransformerEncoder": _m(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        _LINE,
    ),
    "TransformerEncoder-padded": _m(
        lambda: _Padded(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
        ),
        _LINE,
    ),
    "TransformerDecoderLayer": _m(
        lambda: nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), _LINE, _LINE
    ),
    "Transformer": _m(lambda: nn.Transformer(16, 4, 1, 1, 32, batch_first=True), _LINE, _LINE),
}


class _Attend(nn.Module):
    """Self-attention whose weights nobody wants: the fused path."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.attention(tokens, tokens, tokens, need_weights=False)[0]


class _Padded(nn.Module):
    """An encoder given a padding mask: nested tensors in evaluation."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        mask[:, 6:] = True
        return self.encoder(tokens, src_key_padding_mask=mask)


_LOGITS = x(6, 5)
LOSSES = {
    "L1Loss": _m(nn.L1Loss, _LOGITS, _LOGITS),
    "MSELoss": _m(nn.MSELoss, _LOGITS, _LOGITS),
    "CrossEntropyLoss": _m(nn.CrossEntropyLoss, _LOGITS, ids(5, 6)),
    "CrossEntropyLoss-smoothed": _m(
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1), _LOGITS, ids(5, 6)
    ),
    "CrossEntropyLoss-2d": _m(nn.CrossEntropyLoss, x(2, 5, 4, 4), ids(5, 2, 4, 4)),
    "CrossEntropyLoss-soft": _m(nn.CrossEntropyLoss, _LOGITS, probabilities(6, 5)),
    "NLLLoss": _m(nn.NLLLoss, _LOGITS, ids(5, 6)),
    "PoissonNLLLoss": _m(nn.PoissonNLLLoss, _LOGITS, probabilities(6, 5)),
    "GaussianNLLLoss": _m(
        nn.GaussianNLLLoss, _LOGITS, _LOGITS, probabilities(6, 5), skip="fp16 bf16"
    ),
    "KLDivLoss": _m(lambda: nn.KLDivLoss(reduction="batchmean"), _LOGITS, probabilities(6, 5)),
    "BCELoss": _m(
        lambda: lambda p, t: F.binary_cross_entropy(torch.sigmoid(p), t),
        _LOGITS,
        probabilities(6, 5),
        skip="fp16 bf16",
    ),
    "BCEWithLogitsLoss": _m(nn.BCEWithLogitsLoss, _LOGITS, probabilities(6, 5)),
    "HuberLoss": _m(nn.HuberLoss, _LOGITS, _LOGITS),
    "SmoothL1Loss": _m(nn.SmoothL1Loss, _LOGITS, _LOGITS),
    "SoftMarginLoss": _m(nn.SoftMarginLoss, _LOGITS, signs(6, 5)),
    "MultiLabelSoftMarginLoss": _m(nn.MultiLabelSoftMarginLoss, _LOGITS, probabilities(6, 5)),
    "MultiLabelMarginLoss": _m(nn.MultiLabelMarginLoss, _LOGITS, ids(5, 6, 5)),
    "MultiMarginLoss": _m(nn.MultiMarginLoss, _LOGITS, ids(5, 6)),
    "MarginRankingLoss": _m(nn.MarginRankingLoss, x(6), x(6), signs(6)),
    "HingeEmbeddingLoss": _m(nn.HingeEmbeddingLoss, _LOGITS, signs(6, 5)),
    "CosineEmbeddingLoss": _m(nn.CosineEmbeddingLoss, _LOGITS, _LOGITS, signs(6)),
    "TripletMarginLoss": _m(nn.TripletMarginLoss, _LOGITS, _LOGITS, _LOGITS),
    "CosineSimilarity": _m(nn.CosineSimilarity, _LOGITS, _LOGITS),
    "PairwiseDistance": _m(nn.PairwiseDistance, _LOGITS, _LOGITS),
    "CTCLoss": _m(lambda: _ctc, x(12, 3, 7), ids(6, 3, 4), value((12, 12, 12)), value((4, 3, 2))),
    "CTCLoss-tensors": _m(
        lambda: _ctc,
        x(12, 3, 7),
        ids(6, 3, 4),
        value(torch.tensor([12, 12, 12])),
        value(torch.tensor([4, 3, 2])),
    ),
    "AdaptiveLogSoftmaxWithLoss": _m(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10]), x(6, 16), ids(20, 6)
    ),
}


def _ctc(logits: torch.Tensor, targets: torch.Tensor, *lengths: Any) -> torch.Tensor:
    return F.ctc_loss(logits.log_softmax(-1), targets + 1, *lengths)


_MATRIX = x(4, 5, 5)
MATHS = {
    "linalg.inv": _f(torch.linalg.inv, _MATRIX),
    "linalg.det": _f(torch.linalg.det, _MATRIX),
    "linalg.slogdet": _f(lambda a: torch.linalg.slogdet(a)[1], _MATRIX),
    "linalg.solve": _f(torch.linalg.solve, _MATRIX, x(4, 5, 2)),
    "linalg.cholesky": _f(
        lambda a: torch.linalg.cholesky(a @ a.mT + 5 * torch.eye(5, device=a.device)),
        _MATRIX,
        skip="fp16 bf16",
    ),
    "linalg.qr": _f(lambda a: torch.linalg.qr(a)[1], _MATRIX),
    "linalg.svd": _f(lambda a: torch.linalg.svd(a)[1], _MATRIX),
    "linalg.svdvals": _f(torch.linalg.svdvals, _MATRIX),
    "linalg.eigh": _f(lambda a: torch.linalg.eigh(a + a.mT)[0], _MATRIX),
    "linalg.eigvals": _f(lambda a: torch.linalg.eigvals(a).abs(), _MATRIX),
    "linalg.lstsq": _f(lambda a, b: torch.linalg.lstsq(a, b).solution, _MATRIX, x(4, 5, 2)),
    "linalg.pinv": _f(torch.linalg.pinv, _MATRIX),
    "linalg.matrix_norm": _f(lambda a: torch.linalg.matrix_norm(a, 2), _MATRIX),
    "linalg.vector_norm": _f(torch.linalg.vector_norm, _MATRIX),
    "linalg.matrix_power": _f(lambda a: torch.linalg.matrix_power(a, 3), _MATRIX),
    "linalg.matrix_exp": _f(torch.linalg.matrix_exp, _MATRIX),
    "linalg.multi_dot": _f(lambda a, b: torch.linalg.multi_dot([a, b, a]), x(5, 5), x(5, 5)),
    "linalg.cross": _f(torch.linalg.cross, x(4, 3), x(4, 3)),
    "triangular_solve": _f(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), _MATRIX, x(4, 5, 2)
    ),
    "fft.fft": _f(lambda a: torch.fft.fft(a).abs(), _LINE),
    "fft.rfft": _f(lambda a: torch.fft.irfft(torch.fft.rfft(a)), _LINE),
    "fft.fft2": _f(lambda a: torch.fft.ifft2(torch.fft.fft2(a)).real, _LINE),
    "fft.rfftn": _f(lambda a: torch.fft.rfftn(a, dim=(1, 2)).abs(), _LINE),
    "stft": _f(
        lambda a: torch.stft(
            a, 8, 4, window=torch.hann_window(8, device=a.device), return_complex=True
        ).abs(),
        x(2, 64),
    ),
    "sort": _f(lambda a: a.sort(dim=-1)[0], _LINE),
    "sort-stable": _f(lambda a: a.sort(dim=1, stable=True, descending=True)[0], _LINE),
    "argsort": _f(lambda a: a * a.argsort(-1), _LINE),
    "topk": _f(lambda a: a.topk(3)[0], _LINE),
    "kthvalue": _f(lambda a: a.kthvalue(3)[0], _LINE),
    "median": _f(lambda a: a.median(-1)[0], _LINE),
    "mode": _f(lambda a: a.mode(-1)[0], _LINE),
    "quantile": _f(lambda a: a.quantile(0.5, dim=-1), _LINE, skip="fp16 bf16"),
    "cummax": _f(lambda a: a.cummax(-1)[0], _LINE),
    "cumsum": _f(lambda a: a.cumsum(-1), _LINE),
    "cumprod": _f(lambda a: a.cumprod(-1), _LINE),
    "logcumsumexp": _f(lambda a: a.logcumsumexp(-1), _LINE),
    "diff": _f(torch.diff, _LINE),
    "trapezoid": _f(torch.trapezoid, _LINE),
    "searchsorted": _f(lambda b, a: torch.searchsorted(a.sort(-1)[0], b) * b, x(2, 4), x(2, 8)),
    "bucketize": _f(
        lambda a: torch.bucketize(a, torch.linspace(-1, 1, 5, device=a.device)) * a, _LINE
    ),
    "histc": _f(lambda a: a.sum() * torch.histc(a.detach().float(), 4), _LINE),
    "gather": _f(lambda a, i: a.gather(-1, i), _LINE, ids(16, 2, 8, 3)),
    "scatter": _f(lambda a, i: torch.zeros_like(a).scatter(-1, i, a), _LINE, ids(16, 2, 8, 16)),
    "scatter_add": _f(
        lambda a, i: torch.zeros_like(a).scatter_add(-1, i, a), _LINE, ids(16, 2, 8, 16)
    ),
    "scatter_reduce": _f(
        lambda a, i: torch.zeros_like(a).scatter_reduce(-1, i, a, "amax"), _LINE, ids(16, 2, 8, 16)
    ),
    "index_select": _f(lambda a, i: a.index_select(1, i), _LINE, ids(8, 3)),
    "index_add": _f(lambda a, i: torch.zeros_like(a).index_add(1, i, a), _LINE, ids(8, 8)),
    "index_put": _f(
        lambda a, i: a.clone().index_put((i,), a[:1].expand(3, 8, 16)), _LINE, ids(2, 3)
    ),
    "index-tensor": _f(lambda a, i: a[:, i], _LINE, ids(8, 3, 2)),
    "index-mask": _f(lambda a: a[a.new_tensor([True, False], dtype=torch.bool)], _LINE),
    "masked_fill": _f(lambda a: a.masked_fill(a > 0, 0.0), _LINE),
    "masked_scatter": _f(lambda a: a.masked_scatter(a > 0, a.flatten()), _LINE),
    "where": _f(lambda a: torch.where(a > 0, a, -a), _LINE),
    "take_along_dim": _f(lambda a: a.take_along_dim(a.argmax(-1, keepdim=True), -1), _LINE),
    "roll": _f(lambda a: a.roll((1, 2), (1, 2)), _LINE),
    "flip": _f(lambda a: a.flip(-1), _LINE),
    "rot90": _f(torch.rot90, _LINE),
    "tril": _f(torch.tril, _LINE),
    "diagonal": _f(lambda a: a.diagonal(dim1=1, dim2=2), _LINE),
    "diag_embed": _f(torch.diag_embed, _LINE),
    "repeat": _f(lambda a: a.repeat(2, 1, 3), _LINE),
    "repeat_interleave": _f(lambda a: a.repeat_interleave(3, dim=1), _LINE),
    "tile": _f(lambda a: a.tile(2), _LINE),
    "cat": _f(lambda a, b: torch.cat([a, b], 1), _LINE, _LINE),
    "stack": _f(lambda a, b: torch.stack([a, b]), _LINE, _LINE),
    "split": _f(lambda a: a.split([3, 5], 1)[1], _LINE),
    "unbind": _f(lambda a: a.unbind(1)[0], _LINE),
    "cartesian_prod": _f(lambda a, b: torch.cartesian_prod(a, b), x(3), x(4)),
    "meshgrid": _f(lambda a, b: torch.meshgrid(a, b, indexing="ij")[0] * 2, x(3), x(4)),
    "cdist": _f(torch.cdist, x(2, 4, 3), x(2, 5, 3)),
    "cdist-l1": _f(lambda a, b: torch.cdist(a, b, p=1), x(2, 4, 3), x(2, 5, 3)),
    "pdist": _f(F.pdist, x(5, 3)),
    "einsum": _f(lambda a, b: torch.einsum("bij,bkj->bik", a, b), x(2, 4, 3), x(2, 5, 3)),
    "einsum-outer": _f(lambda a, b: torch.einsum("bi,bj,bk->bijk", a, b, a), x(2, 3), x(2, 4)),
    "tensordot": _f(lambda a, b: torch.tensordot(a, b, dims=2), x(2, 4, 3), x(4, 3, 5)),
    "baddbmm": _f(lambda a, b: torch.baddbmm(a @ b, a, b), x(2, 4, 3), x(2, 3, 5)),
    "addmm": _f(lambda a, b: torch.addmm(b[0], a, b), x(4, 3), x(3, 5)),
    "mv": _f(lambda a, b: a.mv(b), x(4, 3), x(3)),
    "dot": _f(lambda a, b: a.dot(b), x(4), x(4)),
    "outer": _f(torch.outer, x(4), x(3)),
    "kron": _f(torch.kron, x(4, 2), x(3, 3)),
    "chain_matmul-vector": _f(lambda a, b: a @ b, x(2, 4, 3), x(3)),
    "logsumexp": _f(lambda a: a.logsumexp(-1), _LINE),
    "var": _f(lambda a: a.var(-1), _LINE),
    "std_mean": _f(lambda a: torch.std_mean(a, -1)[0], _LINE),
    "norm": _f(lambda a: a.norm(dim=-1), _LINE),
    "renorm": _f(lambda a: a.renorm(2, 0, 1.0), _LINE),
    "prod": _f(lambda a: a.prod(-1), _LINE),
    "amax": _f(lambda a: a.amax((1, 2)), _LINE),
    "aminmax": _f(lambda a: a.aminmax()[0], _LINE),
    "clamp": _f(lambda a: a.clamp(-1, 1), _LINE),
    "lerp": _f(lambda a, b: torch.lerp(a, b, 0.3), _LINE, _LINE),
    "addcmul": _f(lambda a, b: torch.addcmul(a, a, b, value=0.5), _LINE, _LINE),
    "pow": _f(lambda a: a.abs().pow(1.5), _LINE),
    "special": _f(lambda a: torch.special.erfinv(a.tanh()) + torch.lgamma(a.abs() + 1), _LINE),
    "complex": _f(
        lambda a: torch.view_as_real(torch.complex(a, a) ** 2), x(2, 8), skip="fp16 bf16"
    ),
    "polar": _f(
        lambda a: torch.view_as_real(torch.polar(torch.ones_like(a), a)), x(2, 8), skip="fp16 bf16"
    ),
    "multinomial": _f(lambda a: a.sum() * torch.multinomial(a.detach().abs(), 3), x(2, 8)),
    "bernoulli": _f(lambda a: a * torch.bernoulli(a.detach().sigmoid()), _LINE),
    "gumbel_softmax": _f(lambda a: F.gumbel_softmax(a, hard=True), _LINE),
    "one_hot": _f(lambda a, i: F.one_hot(i, 5) * a[:, None], x(4), ids(5, 4)),
    "normalize": _f(F.normalize, _LINE),
    "scaled_dot_product_attention": _f(
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        x(2, 4, 8, 16),
        x(2, 4, 8, 16),
    ),
    "unfold-tensor": _f(lambda a: a.unfold(-1, 4, 2), _LINE),
    "as_strided": _f(lambda a: a.as_strided((2, 4), (16, 1)) * 2, _LINE),
    "to-channels-last": _f(lambda a: a.to(memory_format=torch.channels_last) * 2, _IMAGE),
    "nan_to_num": _f(torch.nan_to_num, _LINE),
    "heaviside": _f(lambda a: a * torch.heaviside(a.detach(), a.detach()), _LINE),
    "matmul-broadcast": _f(lambda a, b: a @ b, x(3, 1, 4, 2), x(5, 2, 6)),
    "conv_tbc": _f(
        lambda a, w: torch.conv_tbc(a, w, w.new_zeros(5), 1),
        x(6, 2, 4),
        x(3, 4, 5),
        skip="fp16 bf16",
    ),
    "embedding_renorm": _f(lambda a: F.embedding(a.new_tensor([0, 1]).long(), a), x(4, 3)),
}

ALL: dict[str, Case] = {
    **CONVOLUTIONS, **NORMS, **POOLING, **ACTIVATIONS, **SHAPES, **SEQUENCES, **LOSSES, **MATHS,
}  # fmt: skip
