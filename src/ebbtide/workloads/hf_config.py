"""Where a Transformers configuration comes from: a type, a file, the bundled ones, the hub."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from ebbtide.errors import MissingExtraError, TargetError

# What a published configuration states; the names are those of `attribute_map`.
ESSENTIAL = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def bundled() -> dict[str, dict[str, Any]]:
    """Configurations that are shipped: hub id to fields, ``_about`` left out."""
    text = (resources.files(__package__) / "data" / "configs.json").read_text()
    return {name: fields for name, fields in json.loads(text).items() if name[0] != "_"}


def bundled_id(name: str) -> str | None:
    """The hub id of a bundled configuration that `name` means, by id or by a short name."""
    known = bundled()
    wanted = name.lower()
    for identity, fields in known.items():
        if wanted in (identity.lower(), *fields.get("_short", ())):
            return identity
    return None


def bundled_fields(identity: str) -> dict[str, Any]:
    """The fields of a bundled configuration without our own notes."""
    return {k: v for k, v in bundled()[identity].items() if not k.startswith("_")}


def model_types() -> list[str]:
    """Every model type that the installed Transformers knows."""
    names = _auto().CONFIG_MAPPING_NAMES
    return list(names)


def from_type(model_type: str) -> Any:
    """The default configuration of a model type.

    Raises:
        TargetError: Transformers cannot make one.
    """
    try:
        return _auto().CONFIG_MAPPING[model_type]()
    except Exception as error:  # whatever a configuration class raises
        raise TargetError(
            f"Transformers cannot make a default configuration of {model_type!r}: {_line(error)}. "
            "Pass a config.json."
        ) from error


def read(path: Path) -> dict[str, Any]:
    """The fields in a config.json.

    Raises:
        TargetError: it is no JSON object.
    """
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise TargetError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(fields, dict):
        raise TargetError(f"{path} holds no JSON object but a {type(fields).__name__}")
    return fields


def from_fields(fields: dict[str, Any], origin: str) -> Any:
    """A configuration object from the fields of a config.json.

    Args:
        fields: what the file holds.
        origin: for messages.

    Raises:
        TargetError: a field is missing or has a value that Transformers refuses, or the
            model's code is not part of Transformers.
    """
    model_type = fields.get("model_type")
    known = _auto().CONFIG_MAPPING_NAMES
    if not isinstance(model_type, str | None):
        raise TargetError(
            f"{origin} has a field 'model_type' of {model_type!r}, where a name such as 'llama' "
            "is expected"
        )
    if model_type not in known:
        code = fields.get("auto_map")
        if isinstance(code, dict) and code:
            raise TargetError(
                f"{origin} needs code of its own, {sorted(code.values(), key=str)[0]}, which "
                "Ebbtide does not download or run. Build the model in a script and predict that."
            )
        if model_type is None:
            raise TargetError(
                f"{origin} has no field 'model_type', so it is unclear what it configures. "
                f"It has {', '.join(sorted(fields)[:8]) or 'no fields at all'}."
            )
        raise TargetError(
            f"{origin} is of model type {model_type!r}, which the installed Transformers "
            f"does not know{_near(str(model_type), known)}."
        )
    if not _are_names(fields.get("architectures", [])):
        raise TargetError(
            f"{origin} has a field 'architectures' of {fields['architectures']!r}, where a list "
            "of class names is expected"
        )
    try:
        config_class = _auto().CONFIG_MAPPING[model_type]
        _check_complete(config_class, fields, origin)
        return config_class.from_dict(fields)
    except TargetError:
        raise
    except Exception as error:  # whatever a configuration class raises
        raise TargetError(
            f"{origin} is no usable {model_type} configuration: {_line(error)}"
        ) from error


def _are_names(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(name, str) for name in value)
    )


def from_hub(identity: str) -> Any:
    """The configuration of a hub id: fetched once, then from the cache.

    Raises:
        TargetError: there is no such repository, or the hub cannot be reached.
    """
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingExtraError("A hub id", "huggingface_hub", "hf") from error
    try:
        path = hf_hub_download(identity, "config.json")
    except LocalEntryNotFoundError as error:
        raise TargetError(
            f"The configuration of {identity!r} is not in the cache and the hub cannot be reached. "
            "Pass the path of its config.json, a model type such as 'llama', or a bundled name: "
            f"{', '.join(sorted(bundled())[:6])}, ..."
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise TargetError(
            f"The configuration of {identity!r} cannot be had: {_line(error)}"
        ) from error
    return from_fields(read(Path(path)), identity)


def _check_complete(config_class: Any, fields: dict[str, Any], origin: str) -> None:
    """Refuse a file that leaves the model's size to Transformers' default of another model.

    `save_pretrained` writes these always, so a file without them was cut or written by hand.
    """
    names = getattr(config_class, "attribute_map", {})
    default = config_class()
    missing = []
    for general in ESSENTIAL:
        own = names.get(general, general)
        stated = own in fields or general in fields
        if not stated and isinstance(vars(default).get(own), int):
            missing.append(own)
    if missing:
        raise TargetError(
            f"{origin} does not state {', '.join(missing)}. Add what is missing, or pass "
            f"{fields['model_type']!r} for the default configuration."
        )


def _auto() -> Any:
    try:
        from transformers.models.auto import configuration_auto
    except ImportError as error:
        raise MissingExtraError("An architecture of Transformers", "transformers", "hf") from error
    return configuration_auto


def _near(name: str, known: Any) -> str:
    import difflib

    found = difflib.get_close_matches(name, list(known), 3)
    return f". Near: {', '.join(found)}" if found else ""


def _line(error: Exception) -> str:
    """The last line of an error's text, which says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
