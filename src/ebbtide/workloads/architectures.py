"""What a TARGET that is neither script nor function means, and how to run it."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

from ebbtide.errors import MissingExtraError, TargetError
from ebbtide.workloads import hf_config
from ebbtide.workloads.architecture import Architecture, Running
from ebbtide.workloads.checkpoint import find_weights, read_checkpoint
from ebbtide.workloads.options import QUANTIZATIONS, WorkloadOptions
from ebbtide.workloads.stated import with_stated_dtype
from ebbtide.workloads.torchvision_mend import mend_torchvision

LIBRARIES = ("torchvision/", "timm/")


def find(target: str, options: WorkloadOptions) -> tuple[Architecture, WorkloadOptions]:
    """The architecture that `target` names, and `options` as that target completes them.

    Looked for in this order: a path (config.json, checkpoint folder, safetensors file);
    ``torchvision/NAME`` and ``timm/NAME``; bundled configurations by hub id or short name;
    a model type of Transformers; torchvision; timm; a hub id.

    Args:
        target: what the user wrote.
        options: a checkpoint sets the dtype and quantisation that its weights have; for
            inference, a configuration the dtype that it states.

    Raises:
        TargetError: there is nothing of that name, or it cannot be read.
        MissingExtraError: the library it belongs to is not installed.
        UsageError: an option does not go with it.
    """
    mend_torchvision()
    path = Path(target)
    if path.suffix in (".json", ".safetensors") or path.is_dir():
        return _from_path(path, target, options)
    if target.startswith(LIBRARIES):
        return _from_library(target), options
    identity = hf_config.bundled_id(target)
    if identity is not None:
        fields = hf_config.bundled_fields(identity)
        config = hf_config.from_fields(fields, identity)
        return _transformers(config, target, options, f"bundled {identity}")
    if target in _types():
        config = hf_config.from_type(target)
        return _transformers(config, target, options, f"default of model type {target}")
    if "/" in target:
        return _transformers(hf_config.from_hub(target), target, options, f"hub {target}")
    return _vision(target), options


def build(architecture: Architecture, options: WorkloadOptions, device: str = "cuda") -> Running:
    """The architecture on `device`, ready to be stepped.

    Raises:
        TargetError: it cannot be built.
        UsageError: it lacks something that an option asks for.
    """
    from ebbtide.workloads.inference import Inference
    from ebbtide.workloads.training import Training

    kind = Inference if options.inference else Training
    return kind(architecture, options, device)


def _from_path(
    path: Path, target: str, options: WorkloadOptions
) -> tuple[Architecture, WorkloadOptions]:
    if not path.exists():
        raise TargetError(f"There is no file {target!r}")
    if path.suffix == ".json":
        config = hf_config.from_fields(hf_config.read(path), target)
        return _transformers(config, target, options, target)
    file = path / "config.json"
    if not find_weights(path) and file.is_file():
        config = hf_config.from_fields(hf_config.read(file), target)
        return _transformers(config, target, options, str(file))
    checkpoint = read_checkpoint(path)
    stored = replace(
        options,
        dtype=options.dtype or checkpoint.dtype,
        quantize=options.quantize or (checkpoint.quantization if options.inference else None),
    )
    if checkpoint.config is None:
        from ebbtide.workloads.stored import StoredTensors

        return StoredTensors(checkpoint, target), stored
    config = hf_config.from_fields(checkpoint.config, target)
    return _transformers(config, target, stored, f"checkpoint {target}")


def _transformers(
    config: Any, name: str, options: WorkloadOptions, origin: str
) -> tuple[Architecture, WorkloadOptions]:
    from ebbtide.workloads.hf import ChunkedModel, TransformersModel

    # A quantisation that a configuration states is what `quantize` carries out here.
    stated = getattr(config, "quantization_config", None)
    if stated is not None:
        del config.quantization_config
    kind = ChunkedModel if options.loss == "chunked" else TransformersModel
    options, note = with_stated_dtype(options, config)
    model = kind(config, name)
    model.origin = origin
    if stated is not None and options.quantize is None:
        model.notes["quantisation"] = _not_quantized(stated, name, options)
    if note:
        model.notes["dtype"] = note
    model.measure(options)
    return model, options


def _not_quantized(stated: Any, name: str, options: WorkloadOptions) -> str:
    fields = stated if isinstance(stated, dict) else vars(stated)
    method = fields.get("quant_method", "unknown")
    return (
        f"{name} states weights quantised by {getattr(method, 'value', method)}; they are taken "
        f"as {options.dtype or 'fp32'}. Say which of --quantize {', '.join(QUANTIZATIONS)} comes "
        "near."
    )


def _types() -> list[str]:
    """Model types of Transformers; none where that is not installed."""
    try:
        return hf_config.model_types()
    except MissingExtraError:
        return []


def _from_library(target: str) -> Architecture:
    from ebbtide.workloads.vision import TimmModel, TorchvisionModel

    library, _, name = target.partition("/")
    return TorchvisionModel(name) if library == "torchvision" else TimmModel(name.split(".")[0])


def _vision(target: str) -> Architecture:
    from ebbtide.workloads.vision import TimmModel, TorchvisionModel, model_names

    missing = "" if _types() else "Transformers is not installed, nor are its types known. "
    for kind in (TorchvisionModel, TimmModel):
        try:
            return kind(target)
        except TargetError:
            continue
        except MissingExtraError as error:
            missing += f"{error}. "
    known = [*hf_config.bundled(), *_types(), *model_names()]
    near = difflib.get_close_matches(target, known, 3, cutoff=0.5)
    hint = f" Near: {', '.join(near)}." if near else ""
    raise TargetError(
        f"There is no script, file, model type, torchvision or timm model {target!r}.{hint} "
        f"{missing}Pass a config.json, a model type such as 'llama', a hub id such as "
        "'meta-llama/Meta-Llama-3-8B', or a timm name such as 'resnet50'."
    )
