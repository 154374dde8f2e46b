"""Sound: raw samples and spectrograms."""

from __future__ import annotations

from torch import Tensor

from ebbtide.workloads.hf_inputs.request import Maker, Request, first

SECOND = 16_000


def waveform(request: Request) -> Tensor:
    """``[batch, samples]``: one second at 16 kHz; ``[batch, channels, samples]`` for codecs."""
    codec = first(request.config, "audio_channels", "upsampling_ratios", "upsampling_rates")
    if codec is not None:
        count = first(request.config, "audio_channels") or 1
        return request.floats(request.batch, int(count), SECOND)
    return request.floats(request.batch, SECOND)


def spectrogram(request: Request) -> Tensor:
    """``[batch, mel bins, frames]`` for Whisper's kind, ``[batch, frames, bins]`` for others."""
    configs = (request.audio, request.config)
    bins = first(
        configs,
        "num_mel_bins",
        "n_mels",
        "input_feat_per_channel",
        "input_dim",
        "input_size",
        "feature_size",
    )
    positions = first(configs, "max_source_positions")
    bins = int(bins or 80)
    if positions is not None and first(configs, "num_mel_bins") is not None:
        return request.floats(request.batch, bins, 2 * int(positions))
    return request.floats(request.batch, 128, bins)


MAKERS: dict[str, Maker] = {
    "input_values": waveform,
    "input_features": spectrogram,
}
