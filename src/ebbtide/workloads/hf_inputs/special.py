"""Families whose inputs follow no general rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ebbtide.workloads.hf_inputs.audio import SECOND, bins, frames, waveform
from ebbtide.workloads.hf_inputs.placeholders import grid, token_types
from ebbtide.workloads.hf_inputs.request import (
    Maker,
    Request,
    channels,
    first,
    image_size,
    parts,
    patch_size,
    vocabulary,
)
from ebbtide.workloads.hf_inputs.text import token_ids
from ebbtide.workloads.hf_inputs.vision import images, patches, video


def _bins_first(request: Request) -> Tensor:
    """``[batch, mel bins, frames]``."""
    return request.floats(request.batch, bins(request), frames(request))


def _one_channel(request: Request) -> Tensor:
    """``[batch, 1, frames, mel bins]``, one window of CLAP's."""
    size = int(first(request.audio, "spec_size") or 256)
    return request.floats(request.batch, 1, size * 4, bins(request))


def _whole_clip(request: Request) -> Tensor:
    """``[batch, frames, mel bins]`` of the length that positions are held for."""
    length = int(first(request.config, "max_length", "max_time_bins") or 1024)
    return request.floats(request.batch, length, bins(request))


def _image_pairs(request: Request) -> Tensor:
    """``[batch, 2, channels, height, width]`` of two views to match."""
    return request.floats(request.batch, 2, channels(request), *image_size(request))


def _one_image_each(request: Request) -> Tensor:
    """``[batch, 1, channels, height, width]``: a list of one image a sample."""
    return images(request).unsqueeze(1)


def _length(request: Request) -> int:
    config: Any = request.config
    lags = getattr(config, "lags_sequence", None) or [0]
    length: int = config.context_length + max(lags)
    return length


def _time_features(request: Request, steps: int) -> Tensor:
    count = int(first(request.config, "num_time_features") or 0)
    return request.floats(request.batch, steps, count)


_SERIES: dict[str, Maker] = {
    "past_values": lambda r: r.floats(r.batch, _length(r)),
    "past_time_features": lambda r: _time_features(r, _length(r)),
    "past_observed_mask": lambda r: r.ones(r.batch, _length(r)),
    "future_values": lambda r: r.floats(r.batch, r.config.prediction_length),
    "future_time_features": lambda r: _time_features(r, r.config.prediction_length),
}
_PATCHED: dict[str, Maker] = {
    "past_values": lambda r: r.floats(
        r.batch, int(r.config.context_length), int(r.config.num_input_channels)
    ),
}
_DECISIONS: dict[str, Maker] = {
    "states": lambda r: r.floats(r.batch, r.seq, r.config.state_dim),
    "actions": lambda r: r.floats(r.batch, r.seq, r.config.act_dim),
    "rewards": lambda r: r.floats(r.batch, r.seq, 1),
    "returns_to_go": lambda r: r.floats(r.batch, r.seq, 1),
    "timesteps": lambda r: r.ints(r.config.max_ep_len, r.batch, r.seq),
    "attention_mask": lambda r: r.ones(r.batch, r.seq),
}
_CLAP: dict[str, Maker] = {
    "input_features": _one_channel,
    "is_longer": lambda r: torch.zeros(r.batch, 1, dtype=torch.bool, device=r.device),
}
_GEMMA: dict[str, Maker] = {"token_type_ids": token_types}
_SPOKEN_TEXT: dict[str, Maker] = {"input_features": _bins_first}


def _seq2seq_labels(request: Request) -> Tensor:
    return request.ints(min(vocabulary(request), 100), request.batch, request.seq, low=3)


_PAIR: dict[str, Maker] = {"decoder_input_ids": _seq2seq_labels, "labels": _seq2seq_labels}


def _positions(request: Request) -> Tensor:
    """``[batch, patches, 2]``: column and row of each patch."""
    rows, columns = grid(request)
    row, column = torch.meshgrid(
        torch.arange(rows, device=request.device),
        torch.arange(columns, device=request.device),
        indexing="ij",
    )
    return torch.stack([column, row], -1).reshape(1, -1, 2).expand(request.batch, -1, -1)


def _flat_patches(request: Request) -> Tensor:
    """``[batch, patches, values of a patch]``."""
    rows, columns = grid(request)
    patch = int(first((request.vision, request.config), "patch_size") or 16)
    return request.floats(request.batch, rows * columns, 3 * patch * patch)


def _tiles(request: Request) -> Tensor:
    """``[batch, tiles, channels, side, side]``: the image whole and cut into tiles."""
    side, _ = image_size(request)
    height, width = _tiled_size(request)
    count = (height // side) * (width // side) + 1
    return request.floats(request.batch, count, channels(request), side, side)


def _tiled_size(request: Request) -> tuple[int, int]:
    """Height and width of an image that is cut as the configuration's first choice says."""
    height, width = request.config.image_grid_pinpoints[0]
    return int(height), int(width)


def _tiled_sizes(request: Request) -> Tensor:
    """``[batch, 2]``."""
    return torch.tensor([list(_tiled_size(request))] * request.batch, device=request.device)


def _channel_codes(request: Request) -> Tensor:
    """``[batch, seq, channels]`` of a decoder over several codebooks at once."""
    decoder = first(request.config, "decoder_config") or request.config
    return request.ints(100, request.batch, request.seq, int(first(decoder, "num_channels") or 9))


def _input_rows(request: Request) -> Tensor:
    """``[batch, frames, input_dim]``: stacked frames as an acoustic encoder takes them."""
    width = int(first((request.audio, request.config), "input_dim") or bins(request))
    return request.floats(request.batch, frames(request), width)


def _whole_windows(request: Request) -> int:
    """Frames that are a multiple of the encoder's window."""
    window = 2 * int(first((request.audio, request.config), "n_window") or 50)
    return window * 2


_TILED: dict[str, Maker] = {"pixel_values": _tiles, "image_sizes": _tiled_sizes}


def _patches_each(request: Request) -> Tensor:
    """``[batch, patches, values of a patch]``."""
    result: Tensor = patches(request).unflatten(0, (request.batch, -1))
    return result


def _mono(request: Request) -> Tensor:
    """``[batch, 1, samples]``: one second in one channel."""
    return request.floats(request.batch, 1, SECOND)


def _square_patches(request: Request) -> Tensor:
    """``[patches of all images, channels, side, side]``."""
    side, _ = patch_size(request)
    result: Tensor = patches(request).unflatten(-1, (channels(request), side, side))
    return result


def _codes(request: Request) -> Tensor:
    """``[batch * codebooks, seq]`` of a decoder over several codebooks."""
    count = int(first(request.config, "num_codebooks") or 1)
    return request.ints(100, request.batch * count, request.seq)


_FRAMES: dict[str, Maker] = {"attention_mask": lambda r: r.ones(r.batch, frames(r))}
_TRANSDUCER: dict[str, Maker] = {
    **_FRAMES,
    "decoder_input_ids": lambda r: r.ints(30, r.batch, 6, low=1),
}
_SIZES: dict[str, Maker] = {
    "image_sizes": lambda r: torch.tensor([list(image_size(r))] * r.batch, device=r.device)
}
_MONO: dict[str, Maker] = {"input_values": _mono}
_ONE_IMAGE: dict[str, Maker] = {"pixel_values": _one_image_each}
_REGIONS = 36
_LXMERT: dict[str, Maker] = {
    "visual_feats": lambda r: r.floats(r.batch, _REGIONS, r.config.visual_feat_dim),
    "visual_pos": lambda r: r.floats(r.batch, _REGIONS, r.config.visual_pos_dim),
}
_MLLAMA: dict[str, Maker] = {
    "pixel_values": lambda r: r.floats(r.batch, 1, _tile_count(r), 3, *image_size(r)),
    "aspect_ratio_ids": lambda r: r.ones(r.batch, 1),
    "aspect_ratio_mask": lambda r: r.ones(r.batch, 1, _tile_count(r)),
}
_SEEN: dict[str, Maker] = {
    "cross_attention_mask": lambda r: r.ones(r.batch, r.seq, 1, _tile_count(r)),
}
_CODES: dict[str, Maker] = {
    "decoder_input_ids": _channel_codes,
    "labels": lambda r: _channel_codes(r).transpose(1, 2).flatten(0, 1),
}
_WINDOWS: dict[str, Maker] = {
    "input_features": lambda r: r.floats(r.batch, bins(r), _whole_windows(r)),
    "input_features_mask": lambda r: r.ones(r.batch, _whole_windows(r)),
}
_MASKED_MONO: dict[str, Maker] = {
    "input_values": _mono,
    "padding_mask": lambda r: r.ones(r.batch, SECOND),
}
_VIDEO: dict[str, Maker] = {"pixel_values": video}
_LISTS: dict[str, Maker] = {"past_values": lambda r: list(r.floats(r.batch, _context(r)))}
_MERGED: dict[str, Maker] = {
    name: lambda r: torch.ones(r.batch, dtype=torch.long, device=r.device)
    for name in ("image_merge_sizes",)
}
_HEARD = SECOND // 320  # features of one second: one for each 320 samples
_SEMANTIC = ("feature_projection_input_dim",)
_CODEC_FEATURES: dict[str, Maker] = {
    "input_values": _mono,
    "input_features": lambda r: r.floats(
        r.batch, _HEARD, int(first(tuple(parts(r.config)), *_SEMANTIC) or 160)
    ),
    "input_features_mask": lambda r: r.ones(r.batch, _HEARD),
}
_MUSIC: dict[str, Maker] = {"input_ids": _codes}


def _context(request: Request) -> int:
    return int(first(request.config, "context_length") or 512)


def _heard(request: Request) -> Tensor:
    """``[batch, seq]`` with one token that stands for the whole sound."""
    ids: Tensor = token_ids(request)
    ids[:, 0] = int(request.config.audio_token_id)
    return ids


def _tile_count(request: Request) -> int:
    return int(first(request.vision, "max_num_tiles") or 4)


def _question(request: Request) -> Tensor:
    """``[batch, seq]`` that begins with the token which stands for what is asked."""
    # Made on the host, as a tokenizer does: the model looks for the token.
    ids: Tensor = token_ids(replace(request, device=torch.device("cpu")))
    ids[:, 0] = int(request.config.question_token_id)
    return ids.to(request.device)


MAKERS: dict[str, Maker] = {
    "task_inputs": lambda r: r.ints(100, r.batch, int(first(r.config, "task_seq_len") or 77)),
    "query_embeds": lambda r: r.floats(
        r.batch, int(first(r.config, "num_query_tokens") or 32), r.config.hidden_size
    ),
    "pixel_position_ids": _positions,
    "audio_mel": lambda r: r.floats(r.batch, frames(r), bins(r)),
    "audio_mel_mask": lambda r: torch.zeros(r.batch, frames(r), dtype=torch.bool, device=r.device),
    "spectrogram": lambda r: r.floats(
        r.batch, 32, int(first(r.config, "model_in_dim", "num_mel_bins") or 80)
    ),
    "mel_spectrogram": lambda r: r.floats(r.batch, int(r.config.mel_dim), 32),
}
# By model type, then by name of the input. A name that is listed is always given.
RULES: dict[str, dict[str, Maker]] = {
    "audio-spectrogram-transformer": {"input_values": _whole_clip},
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "patchtst": _PATCHED,
    "patchtsmixer": _PATCHED,
    "clap": _CLAP,
    "clap_audio_model": _CLAP,
    "clvp": _SPOKEN_TEXT,
    "colmodernvbert": {"pixel_values": _one_image_each},
    "modernvbert": {"pixel_values": _one_image_each},
    "smolvlm": _ONE_IMAGE,
    "idefics": {
        "pixel_values": _one_image_each,
        "image_attention_mask": lambda r: r.ones(r.batch, r.seq, 1),
    },
    "idefics2": _ONE_IMAGE,
    "idefics3": _ONE_IMAGE,
    "kimi_k25": {"pixel_values": _square_patches},
    "kimi_k25_vision": {"pixel_values": _square_patches},
    "lasr_ctc": _FRAMES,
    "lasr_encoder": _FRAMES,
    "lighton_ocr": _SIZES,
    "lxmert": _LXMERT,
    "mistral3": _SIZES,
    "mistral_large4": _SIZES,
    "mllama": {**_MLLAMA, **_SEEN},
    "mllama_vision_model": _MLLAMA,
    "musicgen_decoder": _MUSIC,
    "musicgen_melody_decoder": _MUSIC,
    "nemotron3_5_asr": _TRANSDUCER,
    "nemotron_asr_streaming": _TRANSDUCER,
    "omniasr": _MONO,
    "omniasr_audio": _MONO,
    "paddleocr_vl": {"pixel_values": _square_patches},
    "paddleocr_vl_vision": {"pixel_values": lambda r: _square_patches(r)[None]},
    "parakeet_ctc": _FRAMES,
    "parakeet_encoder": _FRAMES,
    "parakeet_rnnt": _TRANSDUCER,
    "parakeet_tdt": _TRANSDUCER,
    "pe_audio": _MONO,
    "pe_audio_encoder": _MONO,
    "pe_audio_video": _MONO,
    "pe_audio_video_encoder": _MONO,
    "pixtral": _SIZES,
    "splinter": {"input_ids": _question},
    "timesformer": {"pixel_values": video},
    "videomae": {"pixel_values": video},
    "vivit": {"pixel_values": video},
    "decision_transformer": _DECISIONS,
    "deepseek_vl_hybrid": {
        "high_res_pixel_values": lambda r: r.floats(r.batch, 3, 1024, 1024),
    },
    "efficientloftr": {"pixel_values": _image_pairs},
    "superglue": {"pixel_values": _image_pairs},
    "lightglue": {"pixel_values": _image_pairs},
    "colqwen2": {"pixel_values": _patches_each},
    "encoder-decoder": _PAIR,
    "granite4_vision": _TILED,
    "llava_next": _TILED,
    "llava_next_video": _TILED,
    "llava_onevision": _TILED,
    "speech-encoder-decoder": {**_PAIR, "inputs": waveform},
    "vision-encoder-decoder": _PAIR,
    "dia": _CODES,
    "dia_decoder": {
        "input_ids": _channel_codes,
        "encoder_hidden_states": lambda r: r.floats(r.batch, r.seq, r.config.cross_hidden_size),
    },
    "kyutai_speech_to_text": {
        "input_ids": lambda r: r.ints(100, r.batch, r.seq, r.config.num_codebooks + 1),
        "labels": lambda r: r.ints(100, r.batch, r.seq),
    },
    "apertus1p5": _SIZES,
    "blip_2_qformer": {
        "encoder_hidden_states": lambda r: r.floats(r.batch, 16, r.config.encoder_hidden_size),
    },
    "omniasr_ctc": _MASKED_MONO,
    "pop2piano": {
        "input_ids": lambda r: None,
        "input_features": lambda r: r.floats(r.batch, frames(r), r.config.d_model),
    },
    "seggpt": {
        name: lambda r: images(r)[:, :, : image_size(r)[0] // 2]
        for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
    },
    "neucodec": _CODEC_FEATURES,
    "xcodec2": _CODEC_FEATURES,
    "granite_speech": {"input_features": _input_rows},
    "granite_speech_plus": {"input_features": _input_rows},
    "granite_speech_encoder": {"hidden_states": _input_rows},
    "granite_speech_plus_encoder": {"hidden_states": _input_rows},
    "granite_speech5_ctc": {"input_features": _input_rows},
    "granite_speech5_encoder": {"input_features": _input_rows},
    "qwen3_asr": _WINDOWS,
    "qwen3_asr_encoder": _WINDOWS,
    "moss_transcribe_diarize": {"padding_mask": lambda r: r.ones(r.batch, frames(r))},
    "speecht5": _PAIR,
    "timesfm": _LISTS,
    "timesfm2_5": _LISTS,
    "vibevoice": _MASKED_MONO,
    "vibevoice_acoustic_tokenizer": _MASKED_MONO,
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": _mono},
    "video_llama_3": _MERGED,
    "video_llama_3_vision": {
        "merge_sizes": lambda r: torch.ones(r.batch, dtype=torch.long, device=r.device)
    },
    "xclip": _VIDEO,
    "xclip_vision_model": {"pixel_values": lambda r: video(r).flatten(0, 1)},
    "xcodec": _MONO,
    "ultravbert": _ONE_IMAGE,
    "instructblipvideo": _VIDEO,
    "perceiver": {"inputs": token_ids, "input_ids": lambda r: None},
    "qwen2_audio": {
        "input_ids": _heard,
        "attention_mask": lambda r: r.ones(r.batch, r.seq),
    },
    "idefics2_perceiver": {
        "context": lambda r: r.floats(r.batch, 64, r.config.hidden_size),
        "attention_mask": lambda r: r.ones(r.batch, 64),
    },
    "visual_bert": {
        "visual_embeds": lambda r: r.floats(r.batch, _REGIONS, r.config.visual_embedding_dim),
        "visual_attention_mask": lambda r: r.ones(r.batch, _REGIONS),
    },
    "fuyu": {"image_patches": patches, "pixel_values": lambda r: None},
    "florence_vision": {"hidden_states": images},
    "gemma3": _GEMMA,
    "paligemma": _GEMMA,
    "gemma4_vision": {"pixel_values": _flat_patches},
}
# Model types whose own loss needs more than labels: the sum of their outputs serves.
WITHOUT_LABELS = frozenset(
    {
        "grounding-dino",
        "mm-grounding-dino",
        "musicgen_decoder",
        "musicgen_melody_decoder",
        "nemotron3_5_asr",
        "nemotron_asr_streaming",
        "perceiver",
        "pp_doclayout_v2",
        "pp_doclayout_v3",
        "pp_doclayout_v4",
        "visual_bert",
    }
)
