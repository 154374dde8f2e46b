"""Any model of Transformers, built from its configuration."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.utils import logging

from ebbtide.errors import TargetError, UsageError
from ebbtide.workloads.architecture import DTYPES
from ebbtide.workloads.chunked import chunked_loss
from ebbtide.workloads.hf_heads import model_class, task_of
from ebbtide.workloads.hf_inputs import inputs_for, loss_of, request_for
from ebbtide.workloads.hf_inputs.request import Request, language_part, parts, read
from ebbtide.workloads.hf_mend import complete
from ebbtide.workloads.hf_probe import feature_tokens
from ebbtide.workloads.options import WorkloadOptions

DEFAULT_SEQ = 512
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
_READ = {"input_ids", "inputs_embeds", "decoder_input_ids"}
CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING"


class TransformersModel:
    """An `ebbtide.workloads.architecture.Architecture` from a configuration.

    Args:
        config: of the model; what it leaves open is filled in as published ones have it.
        name: as the user wrote it.

    Attributes:
        notes: what of the configuration is not carried out, a sentence of each kind.
        origin: where the configuration is from, "" where not known.

    Raises:
        TargetError: no class of Transformers is built from it.
    """

    default_batch = 8

    def __init__(self, config: PretrainedConfig, name: str) -> None:
        self.name = name
        self.config = complete(config)
        self.notes: dict[str, str] = {}
        self.origin = ""
        self._features: dict[str, int] = {}
        try:
            self.cls = model_class(config)
        except ImportError as error:
            raise TargetError(f"{name}: {str(error).strip().splitlines()[0]}") from error

    def measure(self, options: WorkloadOptions) -> None:
        """Find how many tokens an image takes; on real CPU tensors, so before a virtual GPU."""
        if not {"pixel_values", "input_features", "input_values"} & self._taken():
            return
        _resize(self.config, options.image)
        request = self._request(options, 1, torch.device("cpu"))
        logging.set_verbosity_error()
        self._features = feature_tokens(self.cls, self.config, request)

    def make_model(self, options: WorkloadOptions) -> nn.Module:
        """The model on the CPU, in ``options.dtype``."""
        self._check(options)
        _resize(self.config, options.image)
        logging.set_verbosity_error()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model: nn.Module = self.cls._from_config(self.config, dtype=DTYPES[options.dtype])
                return model
            except Exception as error:  # whatever a model's constructor raises
                lines = str(error).strip().splitlines() or [""]
                raise TargetError(
                    f"{self.name} cannot be built: {type(error).__name__}: {lines[0]}"
                ) from error

    def make_inputs(
        self, options: WorkloadOptions, batch: int, device: torch.device
    ) -> Mapping[str, Any]:
        """Keyword arguments of one call."""
        request = self._request(options, batch, device)
        return inputs_for(self.cls, request, labels=not options.inference)

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Call the model."""
        return model(**inputs)

    def loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """The model's own loss; the sum of its outputs where it has none."""
        return loss_of(model(**inputs))

    def decodes(self) -> bool:
        """Causal language models on text alone."""
        return task_of(self.cls) == CAUSAL

    def reads_text(self) -> bool:
        """Whether the forward call takes tokens or their embeddings, or answers in them."""
        return bool(_READ & self._taken())

    def _taken(self) -> set[str]:
        return set(inspect.signature(self.cls.forward).parameters)

    def default_seq(self) -> int:
        """512 tokens, or as many as the model has positions for."""
        found = [
            value
            for part in (self.config, language_part(self.config))
            for name in _LENGTHS
            if isinstance(value := read(part, name), int) and value > 0
        ]
        axes = read(self.config, "axial_pos_shape")
        if axes and read(self.config, "axial_pos_embds"):
            return math.prod(axes)  # Reformer trains on just as many
        return min([DEFAULT_SEQ, *(length - self._offset() for length in found)])

    def _offset(self) -> int:
        """Positions that RoBERTa's kind leaves out: it counts from behind the padding token."""
        members = vars(sys.modules[self.cls.__module__]).values()
        counts = any(
            "create_position_ids_from_input_ids" in vars(m) for m in members if isinstance(m, type)
        )
        return 1 + int(read(self.config, "pad_token_id") or 0) if counts else 0

    def _request(self, options: WorkloadOptions, batch: int, device: torch.device) -> Request:
        dtype = DTYPES[options.dtype] if options.amp is None else torch.float32
        request = request_for(
            self.cls,
            self.config,
            batch=batch,
            seq=options.seq or self.default_seq(),
            image=options.image,
            device=device,
            dtype=dtype,
        )
        return replace(request, features=self._features)

    def _check(self, options: WorkloadOptions) -> None:
        if options.seq is not None and not self.reads_text():
            raise UsageError(f"seq: {self.name} reads no text")
        if (
            options.image is not None
            and not {"pixel_values", "pixel_values_videos"} & self._taken()
        ):
            raise UsageError(f"image: {self.name} reads no images")
        if options.loss == "chunked" and not self.decodes():
            raise UsageError(
                f"loss: only a causal language model has chunked logits, not {self.name}"
            )


class ChunkedModel(TransformersModel):
    """A causal language model whose logits are never held all at once."""

    def loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Cross-entropy of the next token, some tokens at a time."""
        return chunked_loss(model, inputs)


def _resize(config: PretrainedConfig, image: int | None) -> None:
    """Let position embeddings be made for the images that will come."""
    if image is None:
        return
    for part in parts(config):
        held = getattr(part, "image_size", None)
        if isinstance(held, (list, tuple)):
            part.image_size = type(held)([image] * len(held))
        elif isinstance(held, int):
            part.image_size = image
