"""Which Transformers class trains a configuration: the head with a loss, where one exists."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from ebbtide.errors import TargetError

# The task that a model is mostly trained for comes first: BERT has heads for eight tasks.
TASKS = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_CTC_MAPPING",
    "MODEL_FOR_RNNT_MAPPING",
    "MODEL_FOR_TDT_MAPPING",
    "MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING",
    "MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING",
    "MODEL_FOR_TABLE_QUESTION_ANSWERING_MAPPING",
    "MODEL_FOR_DOCUMENT_QUESTION_ANSWERING_MAPPING",
    "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING",
    "MODEL_FOR_KEYPOINT_DETECTION_MAPPING",
    "MODEL_FOR_KEYPOINT_MATCHING_MAPPING",
    "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING",
    "MODEL_FOR_PRETRAINING_MAPPING",
    "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING",
    "MODEL_MAPPING",
    "MODEL_FOR_BACKBONE_MAPPING",
)


def model_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class that trains `config`: its own `architectures`, else the first of `TASKS`.

    Raises:
        TargetError: no class of Transformers is built from such a configuration.
    """
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if inspect.isclass(found):
            return found
    for task in TASKS:
        mapping = getattr(modeling_auto, task, None)
        found = _look_up(mapping, config)
        if found is not None:
            return found
    found = _search_module(config)
    if found is None:
        raise TargetError(
            f"Transformers {transformers.__version__} has the configuration "
            f"{config.model_type!r} but no model that is built from it alone."
        )
    return found


def task_of(cls: type[PreTrainedModel]) -> str:
    """The first of `TASKS` that `cls` is listed under, or ``""``."""
    for task in TASKS:
        names = getattr(modeling_auto, f"{task}_NAMES", {})
        for listed in names.values():
            if cls.__name__ == listed or (isinstance(listed, tuple) and cls.__name__ in listed):
                return task
    return ""


def _look_up(mapping: Any, config: PretrainedConfig) -> type[PreTrainedModel] | None:
    try:
        found = mapping[type(config)]
    except (KeyError, TypeError, ValueError, AttributeError, ImportError):
        return None
    # A few types map to several classes; the first is the plain one.
    cls: type[PreTrainedModel] = found[0] if isinstance(found, (tuple, list)) else found
    return cls


def _search_module(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """Sub-models (a CLIP text tower) are in no mapping: look beside their configuration."""
    package = type(config).__module__.rpartition(".")
    modeling = f"{package[0]}.{package[2].replace('configuration_', 'modeling_', 1)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importlib.import_module(modeling)
        except ImportError:
            return None
    found = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, PreTrainedModel)
        and cls.__module__ == modeling
        and getattr(cls, "config_class", None) is type(config)
        and "forward" in cls.__dict__
    ]
    found.sort(key=lambda cls: ("For" not in cls.__name__, "PreTrained" in cls.__name__))
    return found[0] if found else None
