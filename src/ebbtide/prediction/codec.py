"""Frozen dataclasses as JSON values and back, by their type hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ebbtide.errors import UsageError

T = TypeVar("T")


def encode(value: Any, first: Sequence[str] = ()) -> dict[str, Any]:
    """The dataclass `value` as JSON values, the fields named in `first` before the others."""
    data: dict[str, Any] = _plain(value)
    return {name: data[name] for name in dict.fromkeys((*first, *data))}


def decode(kind: type[T], data: Mapping[str, Any]) -> T:
    """What `encode` made of a dataclass of this kind; unknown fields are passed over.

    Raises:
        UsageError: a field is missing, or of another kind than the class says.
    """
    try:
        built: T = _build(kind, data, kind.__name__)
    except ValueError as error:
        raise UsageError(f"This is no {kind.__name__} that Ebbtide wrote: {error}.") from error
    return built


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` as the type hint `kind` says, or ValueError with the place."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        return _build(next(arg for arg in args if arg is not NoneType), value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, where)
    if origin is tuple:
        items = _expect(list, value, where)
        hints = [args[0]] * len(items) if args[1:] == (...,) else list(args)
        if len(hints) != len(items):
            raise ValueError(f"{where} has {len(items)} items, expected {len(hints)}")
        return tuple(
            _build(hint, item, f"{where}[{index}]")
            for index, (hint, item) in enumerate(zip(hints, items, strict=True))
        )
    if origin is Mapping:
        items = _expect(dict, value, where)
        return {key: _build(args[1], item, f"{where}[{key!r}]") for key, item in items.items()}
    if kind is float and type(value) is int:
        return float(value)
    return _expect(kind, value, where)


def _dataclass(kind: type[Any], value: Any, where: str) -> Any:
    data, hints = _expect(dict, value, where), get_type_hints(kind)
    values = {}
    for field in fields(kind):
        if field.name in data:
            values[field.name] = _build(
                hints[field.name], data[field.name], f"{where}.{field.name}"
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}.{field.name} is missing")
    return kind(**values)


def _expect(kind: type[Any], value: Any, where: str) -> Any:
    # `True` is an int to Python, but no number of bytes.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} is {value!r:.40}, expected {kind.__name__}")
    return value
