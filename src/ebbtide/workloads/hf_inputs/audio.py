"""Sound: raw samples and spectrograms."""

from __future__ import annotations

from torch import Tensor

from ebbtide.workloads.hf_inputs.request import Maker, Request, first, parts

SECOND = 16_000
CODECS = (
    "audio_channels",
    "upsampling_ratios",
    "upsampling_rates",
    "downsampling_ratios",
    "acoustic_tokenizer_config",
    "acoustic_model_config",
)
FRAMES = 128
BINS = (
    "num_mel_bins",
    "n_mels",
    "input_feat_per_channel",
    "feature_projection_input_dim",
    "feature_size",
    "input_dim",
)


def waveform(request: Request) -> Tensor:
    """``[batch, samples]``: one second at 16 kHz; ``[batch, channels, samples]`` for codecs."""
    codec = first(request.config, *CODECS)
    if codec is not None:
        count = first(request.config, "audio_channels") or 1
        return request.floats(request.batch, int(count), SECOND)
    return request.floats(request.batch, SECOND)


def bins(request: Request) -> int:
    """Mel bins of a spectrogram."""
    near = first((request.audio, request.config), *BINS, "input_size")
    return int(near or first(tuple(parts(request.config)), *BINS) or 80)


def frames(request: Request) -> int:
    """Frames of a spectrogram: a whole window for Whisper's kind."""
    positions = first((request.audio, request.config), "max_source_positions")
    return 2 * int(positions) if _whisper(request) and positions else FRAMES


def _whisper(request: Request) -> bool:
    """Whether bins come before frames: encoders that begin with convolutions over time."""
    configs = (request.audio, request.config)
    return (
        first(configs, "max_source_positions") is not None
        and (first(configs, "num_mel_bins") is not None)
        and first(configs, "input_feat_per_channel", "num_conv_layers") is None
    )


def spectrogram(request: Request) -> Tensor:
    """``[batch, mel bins, frames]`` for Whisper's kind, ``[batch, frames, bins]`` for others."""
    if _whisper(request):
        return request.floats(request.batch, bins(request), frames(request))
    return request.floats(request.batch, frames(request), bins(request))


MAKERS: dict[str, Maker] = {
    "input_values": waveform,
    "input_features": spectrogram,
    "padding_mask": lambda r: r.ones(r.batch, frames(r)),
    "input_features_mask": lambda r: r.ones(r.batch, frames(r)),
    "feature_attention_mask": lambda r: r.ones(r.batch, frames(r)),
}
